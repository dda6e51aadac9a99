"""What the launcher says over gRPC: is a pod healthy, who drafts for a verifier, and one streamed answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specgrove.proto.v1 import gateway_pb2, gateway_pb2_grpc, generation_pb2, verifier_pb2, verifier_pb2_grpc
from specgrove_local.errors import LocalError

# Everything is on loopback, whatever proxy the environment names.
_CHANNEL_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 500))


@dataclass(frozen=True, slots=True)
class Figures:
    """The speculation's figures of one generation, as the gateway reports them."""

    num_steps: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_committed_tokens: int
    accepted_per_depth: tuple[int, ...]
    drafted_per_depth: tuple[int, ...]
    prefill_s: float
    decode_s: float

    @property
    def committed_per_step(self) -> float:
        return self.num_committed_tokens / self.num_steps if self.num_steps else 0.0

    @property
    def time_per_token_s(self) -> float:
        """Between tokens: the first one belongs to the prefill."""
        return self.decode_s / (self.num_committed_tokens - 1) if self.num_committed_tokens > 1 else 0.0


@dataclass(slots=True)
class Answer:
    """One generation, complete once its stream has ended."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = ""
    figures: Figures | None = None


@contextmanager
def _channel(address: str) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(address, options=_CHANNEL_OPTIONS) as channel:
        yield channel


def is_serving(address: str, service: str, *, timeout_s: float = 1.0) -> bool:
    """Whether the pod at `address` answers SERVING for `service` in the gRPC health protocol."""
    with _channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=timeout_s
            )
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def num_drafters(verifier_address: str, *, timeout_s: float = 2.0) -> int:
    """How many drafters are attached to the verifier; 0 as well when it does not answer."""
    with _channel(verifier_address) as channel:
        try:
            stub = verifier_pb2_grpc.VerifierServiceStub(channel)
            return int(stub.Describe(verifier_pb2.DescribeRequest(), timeout=timeout_s).num_drafters)
        except grpc.RpcError:
            return 0


def knows_a_verifier(gateway_address: str, *, timeout_s: float = 2.0) -> bool:
    """Whether the gateway has heard from a verifier: from then on it tells what its model can do."""
    with _channel(gateway_address) as channel:
        try:
            stub = gateway_pb2_grpc.GatewayServiceStub(channel)
            listed = stub.ListModels(gateway_pb2.ListModelsRequest(), timeout=timeout_s).models
        except grpc.RpcError:
            return False
    return any(model.max_context_len for model in listed)


def stream_chat(
    gateway_address: str, prompt: str, *, max_tokens: int, speculation: bool, answer: Answer, timeout_s: float
) -> Iterator[str]:
    """The text of a greedy answer, piece by piece; `answer` is filled on the way. LocalError if the gateway refuses."""
    request = gateway_pb2.GenerateRequest(
        chat=gateway_pb2.ChatMessages(messages=[gateway_pb2.ChatMessage(role="user", content=prompt)]),
        temperature=0.0,
        max_tokens=max_tokens,
        speculation=generation_pb2.SpeculationOptions(disabled=not speculation),
    )
    with _channel(gateway_address) as channel:
        try:
            for response in gateway_pb2_grpc.GatewayServiceStub(channel).Generate(request, timeout=timeout_s):
                answer.token_ids.extend(response.token_ids)
                answer.text += response.text
                if response.finish_reason:
                    name = generation_pb2.FinishReason.Name(response.finish_reason)
                    answer.finish_reason = name.removeprefix("FINISH_REASON_").lower()
                if response.HasField("stats"):
                    answer.figures = _figures(response.stats)
                if response.text:
                    yield response.text
        except grpc.RpcError as error:
            raise LocalError(f"the gateway answered {error.code().name}: {error.details()}") from error


def _figures(stats: generation_pb2.SpeculationStats) -> Figures:
    return Figures(
        num_steps=stats.num_steps,
        num_drafts=stats.num_drafts,
        num_draft_tokens=stats.num_draft_tokens,
        num_accepted_tokens=stats.num_accepted_tokens,
        num_committed_tokens=stats.num_committed_tokens,
        accepted_per_depth=tuple(stats.accepted_per_pos),
        drafted_per_depth=tuple(stats.drafted_per_pos),
        prefill_s=stats.prefill_s,
        decode_s=stats.decode_s,
    )
