"""A verifier without a model: a real gRPC server that plays a script and keeps to the stop conditions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from specgrove.errors import PeerUnavailable, SpecgroveError
from specgrove.outcome import TokenLogprobs
from specgrove.proto.v1 import generation_pb2, verifier_pb2, verifier_pb2_grpc
from specgrove.rpc import GrpcServer
from specgrove.text import OutputText, Tokenizer
from specgrove.wire import logprobs_to_proto, stop_from_proto

SERVICE_NAME = "specgrove.proto.v1.VerifierService"
Script = Callable[[Sequence[int], int], Sequence[int]]  # (prompt ids, seed) -> all ids the model would ever write


@dataclass(slots=True)
class Behaviour:
    """How the fake misbehaves; changed by tests while it runs."""

    step_s: float = 0.0
    tokens_per_step: int = 2
    die_after: int | None = None  # break the call with UNAVAILABLE after so many tokens of it
    hang_after: int | None = None  # send nothing more after so many tokens of it
    refuse_with: SpecgroveError | None = None
    epoch_shift: int = 0  # speak under another epoch than asked
    num_running: int = 0
    is_mute: bool = False  # do not answer Describe, as a stopped process


@dataclass(slots=True)
class FakeVerifier(verifier_pb2_grpc.VerifierServiceServicer):
    """Start it, dial `address`, read `requests` and `num_cancelled`."""

    tokenizer: Tokenizer
    script: Script
    verifier_id: str = "verifier-1"
    vocab_hash: str | None = None
    max_context_len: int = 256
    behaviour: Behaviour = field(default_factory=Behaviour)
    requests: list[Any] = field(default_factory=list)
    num_cancelled: int = 0
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    incarnation: str = "1"
    _server: GrpcServer | None = None
    address: str = ""

    async def start(self, port: int = 0) -> None:
        self._server = GrpcServer("127.0.0.1", port)
        self._server.add(self, verifier_pb2_grpc.add_VerifierServiceServicer_to_server, SERVICE_NAME)
        self.address = f"127.0.0.1:{await self._server.start()}"

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0.0)

    async def Describe(self, request: Any, context: Any) -> verifier_pb2.DescribeResponse:
        if self.behaviour.is_mute:
            await asyncio.sleep(3600)
        return verifier_pb2.DescribeResponse(
            verifier_id=self.verifier_id,
            incarnation=self.incarnation,
            model="fake",
            vocab_hash=self.vocab_hash or self.tokenizer.vocab_hash,
            vocab_size=self.tokenizer.vocab_size,
            max_context_len=self.max_context_len,
            num_running=self.behaviour.num_running,
            max_sessions=8,
        )

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[verifier_pb2.VerifierGenerateResponse]:
        self.requests.append(request)
        if self.behaviour.refuse_with is not None:
            raise self.behaviour.refuse_with
        try:
            async for message in self._play(request):
                yield message
        except (asyncio.CancelledError, GeneratorExit):
            self.num_cancelled += 1
            self.cancelled.set()
            raise

    def _score(self, request: Any, message: Any, *, is_first: bool) -> None:
        if not request.HasField("top_logprobs"):
            return

        def scored(token_ids: Sequence[int]) -> list[generation_pb2.TokenLogprobs]:
            return logprobs_to_proto(fake_logprobs(token_ids, request.top_logprobs, self.tokenizer.vocab_size))

        message.logprobs.extend(scored(message.token_ids))
        if request.prompt_logprobs and is_first:
            message.prompt_logprobs.extend(scored(request.prompt_token_ids[1:]))

    async def _play(self, request: Any) -> AsyncIterator[verifier_pb2.VerifierGenerateResponse]:
        stop = stop_from_proto(request.stop)
        text = OutputText(self.tokenizer, stop.stop_strings, stop.min_tokens)
        for token_id in request.committed_token_ids:
            text.push(token_id)
        ids = self.script(tuple(request.prompt_token_ids), request.sampling.seed)[text.num_tokens :]
        step: list[int] = []
        num_sent = 0
        epoch = request.epoch + self.behaviour.epoch_shift
        for token_id in ids:
            step.append(token_id)
            text.push(token_id)
            may_stop = text.num_tokens > stop.min_tokens
            is_eos = token_id in self.tokenizer.eos_token_ids and not stop.ignore_eos
            finish = generation_pb2.FINISH_REASON_UNSPECIFIED
            if text.match is not None or (may_stop and (is_eos or token_id in stop.stop_token_ids)):
                finish = generation_pb2.FINISH_REASON_STOP
            elif text.num_tokens == stop.max_tokens:
                finish = generation_pb2.FINISH_REASON_LENGTH
            if not finish and len(step) < self.behaviour.tokens_per_step:
                continue
            await asyncio.sleep(self.behaviour.step_s)
            if self.behaviour.hang_after is not None and num_sent >= self.behaviour.hang_after:
                await asyncio.sleep(3600)
            if self.behaviour.die_after is not None and num_sent >= self.behaviour.die_after:
                raise PeerUnavailable("the fake verifier died")
            message = verifier_pb2.VerifierGenerateResponse(epoch=epoch, token_ids=step, finish_reason=finish)
            self._score(request, message, is_first=num_sent == 0)
            if finish:
                message.stop_string = text.match.stop_string if text.match else ""
                message.stats.CopyFrom(_stats(text.num_tokens))
            num_sent += len(step)
            step = []
            yield message
            if finish:
                return


def fake_logprobs(token_ids: Sequence[int], num_top: int, vocab_size: int) -> list[TokenLogprobs]:
    """What the fake thinks of tokens, exact in float32; the token that came is the second likeliest."""
    return [
        TokenLogprobs(-1.0, tuple(((token_id + 1 - n) % vocab_size, -n / 1.0) for n in range(num_top)))
        for token_id in token_ids
    ]


def _stats(num_tokens: int) -> generation_pb2.SpeculationStats:
    return generation_pb2.SpeculationStats(
        num_steps=10,
        num_drafts=8,
        num_draft_tokens=40,
        num_accepted_tokens=9,
        num_committed_tokens=num_tokens,
        accepted_per_pos=[6, 3],
        drafted_per_pos=[8, 8],
        prefill_s=0.01,
        decode_s=0.1,
    )
