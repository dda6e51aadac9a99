"""The gateway's gRPC edges: the servicer that clients call and the client of the verifiers. Messages stop here."""

from specgrove_gateway.service.gateway_servicer import GATEWAY_SERVICE_NAME, GatewayServicer, add_gateway_servicer
from specgrove_gateway.service.verifier_client import VerifierClient

__all__ = ["GATEWAY_SERVICE_NAME", "GatewayServicer", "VerifierClient", "add_gateway_servicer"]
