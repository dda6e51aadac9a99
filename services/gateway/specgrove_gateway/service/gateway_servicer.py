"""GatewayService: the gRPC face. Errors leave as exceptions of ours; the server's interceptor gives them a status."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from specgrove.errors import RequestTooLarge
from specgrove.proto.v1 import gateway_pb2, gateway_pb2_grpc
from specgrove.rpc import ServicerContext
from specgrove.telemetry import log_context
from specgrove.version import VERSION
from specgrove_gateway.choices import ChoiceGenerator
from specgrove_gateway.metrics import GatewayMetrics
from specgrove_gateway.request_builder import RequestBuilder
from specgrove_gateway.service.messages import (
    client_request_from_proto,
    event_to_proto,
    tokenize_request_from_proto,
)
from specgrove_gateway.tokenization import DetokenizeRequest, Tokenization

GATEWAY_SERVICE_NAME = "specgrove.proto.v1.GatewayService"
add_gateway_servicer = gateway_pb2_grpc.add_GatewayServiceServicer_to_server


class GatewayServicer(gateway_pb2_grpc.GatewayServiceServicer):
    """Answers gRPC clients. A client that cancels ends the generation at once."""

    def __init__(
        self,
        builder: RequestBuilder,
        choices: ChoiceGenerator,
        tokenization: Tokenization,
        metrics: GatewayMetrics,
        max_request_bytes: int,
    ) -> None:
        self._builder = builder
        self._choices = choices
        self._tokenization = tokenization
        self._metrics = metrics
        self._max_request_bytes = max_request_bytes

    async def Generate(
        self, request: gateway_pb2.GenerateRequest, context: ServicerContext
    ) -> AsyncIterator[gateway_pb2.GenerateResponse]:
        with self._metrics.count_errors():
            self._refuse_too_large(request, request.WhichOneof("input"))
            generation = await self._builder.build(client_request_from_proto(request))
            with log_context(request_id=generation.request_id, session_id=generation.session_id):
                async with aclosing(self._choices.generate(generation)) as events:
                    async for choice in events:
                        yield event_to_proto(generation, choice)

    async def ListModels(
        self, request: gateway_pb2.ListModelsRequest, context: ServicerContext
    ) -> gateway_pb2.ListModelsResponse:
        model = self._builder.served_model()
        return gateway_pb2.ListModelsResponse(
            models=[
                gateway_pb2.Model(
                    id=model.model_id,
                    max_context_len=model.limits.max_context_len if model.limits else 0,
                    vocab_size=model.limits.vocab_size if model.limits else 0,
                )
            ],
            version=VERSION,
        )

    async def Tokenize(
        self, request: gateway_pb2.TokenizeRequest, context: ServicerContext
    ) -> gateway_pb2.TokenizeResponse:
        with self._metrics.count_errors():
            self._refuse_too_large(request, request.WhichOneof("input"))
            tokens = await self._tokenization.tokenize(tokenize_request_from_proto(request))
            return gateway_pb2.TokenizeResponse(
                token_ids=tokens.token_ids,
                token_strs=tokens.token_strs or (),
                max_context_len=tokens.max_context_len or 0,
            )

    async def Detokenize(
        self, request: gateway_pb2.DetokenizeRequest, context: ServicerContext
    ) -> gateway_pb2.DetokenizeResponse:
        with self._metrics.count_errors():
            self._refuse_too_large(request, "token_ids")
            asked = DetokenizeRequest(tuple(request.token_ids), "token_ids", request.model or None)
            return gateway_pb2.DetokenizeResponse(text=await self._tokenization.detokenize(asked))

    def _refuse_too_large(
        self,
        request: gateway_pb2.GenerateRequest | gateway_pb2.TokenizeRequest | gateway_pb2.DetokenizeRequest,
        input_field: str | None,
    ) -> None:
        if request.ByteSize() > self._max_request_bytes:
            raise RequestTooLarge(
                f"the request is larger than {self._max_request_bytes} bytes; "
                f"send a shorter {input_field or 'request'}",
                field=input_field,
            )
