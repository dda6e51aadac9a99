"""A verifier that only describes itself."""

import os
from pathlib import Path

from stand_in_pod import flags, run

from specgrove.proto.v1 import verifier_pb2, verifier_pb2_grpc


class Verifier(verifier_pb2_grpc.VerifierServiceServicer):
    def Describe(self, request, context):
        attached = len(list(Path(os.environ["STAND_IN_FOLDER"]).glob("*.attached")))
        return verifier_pb2.DescribeResponse(num_drafters=attached)


run(
    "VERIFIER",
    "specgrove.proto.v1.VerifierService",
    flags()["--port"],
    lambda server: verifier_pb2_grpc.add_VerifierServiceServicer_to_server(Verifier(), server),
)
