"""A request in, the answer's events out: admission, the router's steps, text, metrics. Both faces read from here."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, nullcontext

from specgrove.errors import PeerUnavailable
from specgrove.outcome import FinishReason, SpeculationStats
from specgrove.text import OutputText, Tokenizer
from specgrove_gateway.admission import Admission
from specgrove_gateway.generation import (
    Delta,
    Echo,
    Finished,
    GenerationEvent,
    GenerationRequest,
    ScoredToken,
    TokenStep,
    Usage,
)
from specgrove_gateway.metrics import GatewayMetrics
from specgrove_gateway.router import Router
from specgrove_gateway.scored_tokens import echo_of, scored_tokens

_log = logging.getLogger(__name__)


class Generator:
    """Generates. Closing the iterator, or cancelling its task, cancels the verifier's call at once."""

    def __init__(self, tokenizer: Tokenizer, router: Router, admission: Admission, metrics: GatewayMetrics) -> None:
        self._tokenizer = tokenizer
        self._router = router
        self._admission = admission
        self._metrics = metrics

    async def generate(
        self, request: GenerationRequest, *, has_slot: bool = False
    ) -> AsyncGenerator[GenerationEvent, None]:
        """Deltas, then exactly one Finished. Raises the errors of `Router.steps`, and Overloaded without room.

        `has_slot`: the caller holds one for it.
        """
        clock = _Clock(self._metrics)
        finished: Finished | None = None
        is_failed = False
        try:
            slot = nullcontext() if has_slot else self._admission.slot()
            async with slot, aclosing(self._router.steps(request)) as steps:
                if request.choice_index == 0:
                    self._metrics.prompt_tokens.inc(len(request.prompt_token_ids))
                text = OutputText(self._tokenizer, request.stop.stop_strings, request.stop.min_tokens)
                has_begun = False
                async for step in steps:
                    clock.tick(len(step.token_ids))
                    if request.echo_text is not None and request.choice_index == 0 and not has_begun:
                        yield self._echo(request, request.echo_text, step)
                    has_begun = True
                    event = self._read(request, text, step)
                    if isinstance(event, Finished):
                        finished = event
                        break
                    yield event
            # The slot is free and the call is over before the last word goes out.
            if finished is None:
                raise RuntimeError("the router ended without a finish reason")
            yield finished
        except Exception as error:
            is_failed = True
            _log.warning("generation failed: %s", error)
            raise
        finally:
            if finished is not None:
                self._metrics.request_success.labels(finished.finish_reason.value).inc()
                clock.finish()
            elif not is_failed:
                self._metrics.request_success.labels("abort").inc()
            _log.info(
                "generation %s",
                "failed" if is_failed else finished.finish_reason.value if finished else "aborted",
                extra={
                    "prompt_tokens": len(request.prompt_token_ids),
                    "completion_tokens": clock.num_tokens,
                    "elapsed_s": round(clock.elapsed_s, 4),
                },
            )

    def _read(self, request: GenerationRequest, text: OutputText, step: TokenStep) -> GenerationEvent:
        """The event of one step. The token that ended the output by itself (EOS, stop token) has no text."""
        shown = step.token_ids
        if step.finish_reason is FinishReason.STOP and not step.stop_string and shown:
            shown = shown[:-1]
        pieces, offsets = [], []
        for token_id in shown:
            offsets.append(text.num_chars)
            pieces.append(text.push(token_id))
        for _ in range(len(step.token_ids) - len(shown)):
            offsets.append(text.num_chars)
            text.skip()
        logprobs = self._scored(request, step, offsets)
        finish_reason = FinishReason.STOP if text.match is not None else step.finish_reason
        if finish_reason is None:
            return Delta("".join(pieces), step.token_ids, logprobs)
        return Finished(
            text="".join(pieces) + text.finish(),
            token_ids=step.token_ids,
            finish_reason=finish_reason,
            usage=Usage(len(request.prompt_token_ids), text.num_tokens),
            stats=step.stats or SpeculationStats(),
            logprobs=logprobs,
        )

    def _scored(self, request: GenerationRequest, step: TokenStep, offsets: Sequence[int]) -> tuple[ScoredToken, ...]:
        if request.top_logprobs is None or not step.token_ids:
            return ()
        if len(step.logprobs) != len(step.token_ids):
            raise PeerUnavailable("the verifier sent tokens without the logprobs that were asked for; it may be older")
        start = len(request.echo_text or "")
        return scored_tokens(self._tokenizer, step.token_ids, step.logprobs, [start + offset for offset in offsets])

    def _echo(self, request: GenerationRequest, text: str, first: TokenStep) -> Echo:
        """The prompt as an event. A prompt of one token has no logprobs of its own, and is still shown with them."""
        token_ids = request.prompt_token_ids
        if request.top_logprobs is None:
            return Echo(text, token_ids)
        return echo_of(self._tokenizer, text, token_ids, first.prompt_logprobs)


class _Clock:
    """Latencies of one generation."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._started_at = time.monotonic()
        self._last_at: float | None = None
        self.num_tokens = 0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_at

    def tick(self, num_tokens: int) -> None:
        if not num_tokens:
            return
        now = time.monotonic()
        self.num_tokens += num_tokens
        self._metrics.generation_tokens.inc(num_tokens)
        if self._last_at is None:
            self._metrics.time_to_first_token_s.observe(now - self._started_at)
        else:
            for _ in range(num_tokens):
                self._metrics.inter_token_latency_s.observe((now - self._last_at) / num_tokens)
        self._last_at = now

    def finish(self) -> None:
        self._metrics.e2e_request_latency_s.observe(self.elapsed_s)
