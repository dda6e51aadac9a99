"""A gateway that knows one answer. STAND_IN_GATEWAY=inexact: the answer depends on speculation."""

import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from stand_in_pod import flags, run

from specgrove.proto.v1 import gateway_pb2, gateway_pb2_grpc, generation_pb2

WORDS = ["Rivers", " carry", " salt", "."]


class Gateway(gateway_pb2_grpc.GatewayServiceServicer):
    def Generate(self, request, context):
        speculates = not request.speculation.disabled
        for token_id, word in enumerate(WORDS):
            shift = 100 if speculates and os.environ.get("STAND_IN_GATEWAY") == "inexact" else 0
            yield gateway_pb2.GenerateResponse(text=word, token_ids=[token_id + shift])
        stats = generation_pb2.SpeculationStats(
            num_steps=2 if speculates else 4,
            num_drafts=2 if speculates else 0,
            num_draft_tokens=4 if speculates else 0,
            num_accepted_tokens=2 if speculates else 0,
            num_committed_tokens=4,
            accepted_per_pos=[2, 0] if speculates else [],
            drafted_per_pos=[2, 2] if speculates else [],
            prefill_s=0.1,
            decode_s=0.03 if speculates else 0.06,
        )
        yield gateway_pb2.GenerateResponse(finish_reason=generation_pb2.FINISH_REASON_STOP, stats=stats)

    def ListModels(self, request, context):
        return gateway_pb2.ListModelsResponse(models=[gateway_pb2.Model(id="some-model", max_context_len=100)])


class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *args):
        pass


given = flags()
http = ThreadingHTTPServer(("127.0.0.1", int(given["--http-port"])), Health)
threading.Thread(target=http.serve_forever, daemon=True).start()
run(
    "GATEWAY",
    "specgrove.proto.v1.GatewayService",
    given["--grpc-port"],
    lambda server: gateway_pb2_grpc.add_GatewayServiceServicer_to_server(Gateway(), server),
)
