"""What the stand-in services share: flags, the gRPC health service, and misbehaviour asked for by the environment.

STAND_IN_<KIND> is one of: "" (behaves), "dies" (exits with status 3 and a last word), "sulks" (never healthy),
"stubborn" (ignores SIGTERM), "crashes:<seconds>" (exits by itself after a while).
"""

import os
import signal
import sys
import threading
import time
from concurrent import futures

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc


def flags():
    words = sys.argv[1:]
    return {word: words[place + 1] for place, word in enumerate(words[:-1]) if word.startswith("--")}


def run(kind, service, port, add_services=lambda server: None):
    behaviour = os.environ.get(f"STAND_IN_{kind}", "")
    print(f"{kind} stand-in: {behaviour or 'behaves'} {sys.argv[1:]}", flush=True)
    if behaviour == "dies":
        sys.exit(f"{kind}: the model folder is on fire")
    done = threading.Event()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "stubborn" else lambda *_: done.set())
    server = grpc.server(futures.ThreadPoolExecutor(4))
    servicer = health.HealthServicer()
    status = (
        health_pb2.HealthCheckResponse.NOT_SERVING if behaviour == "sulks" else health_pb2.HealthCheckResponse.SERVING
    )
    servicer.set("", status)
    servicer.set(service, status)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    add_services(server)
    assert server.add_insecure_port(f"127.0.0.1:{port}") == int(port)
    server.start()
    seconds = float(behaviour.partition(":")[2]) if behaviour.startswith("crashes:") else None
    began = time.monotonic()
    while not done.wait(0.1):  # short: a signal that another thread takes does not end a wait of this one
        if seconds is not None and time.monotonic() - began > seconds:
            sys.exit(f"{kind}: that was enough")
    server.stop(0)
