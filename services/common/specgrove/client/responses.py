"""What the gateway says, as values."""

from __future__ import annotations

from specgrove.client.values import Chunk, Model, Tokens, Usage
from specgrove.proto.v1 import gateway_pb2
from specgrove.wire import finish_reason_from_proto, stats_from_proto


def chunk_from_proto(message: gateway_pb2.GenerateResponse) -> Chunk:
    finish_reason = finish_reason_from_proto(message.finish_reason)
    is_last = finish_reason is not None
    return Chunk(
        request_id=message.request_id,
        session_id=message.session_id,
        text=message.text,
        token_ids=tuple(message.token_ids),
        finish_reason=finish_reason,
        usage=Usage(message.usage.prompt_tokens, message.usage.completion_tokens) if is_last else None,
        stats=stats_from_proto(message.stats) if is_last else None,
        seed=message.seed if is_last else None,
    )


def models_from_proto(message: gateway_pb2.ListModelsResponse) -> list[Model]:
    return [Model(model.id, model.max_context_len, model.vocab_size) for model in message.models]


def tokens_from_proto(message: gateway_pb2.TokenizeResponse) -> Tokens:
    return Tokens(tuple(message.token_ids), tuple(message.token_strs))
