"""Server reflection, so that grpcurl and its like can list and call the services without the proto files.

The package knows v1alpha only; v1 has the same messages under another service name, so one servicer answers both.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import grpc.aio
from grpc_reflection.v1alpha import reflection, reflection_pb2

V1_SERVICE_NAME = "grpc.reflection.v1.ServerReflection"
V1ALPHA_SERVICE_NAME = reflection.SERVICE_NAME


def add_reflection(server: grpc.aio.Server, service_names: Sequence[str]) -> None:
    """Lets clients of either version list `service_names` and fetch their descriptors."""
    # v1 itself is not listed: its descriptor is not in the pool, and tools that describe all that is listed would fail.
    servicer = reflection.aio.ReflectionServicer([*service_names, V1ALPHA_SERVICE_NAME])
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for name in (V1_SERVICE_NAME, V1ALPHA_SERVICE_NAME):
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method}),))
