"""A request in, the answer's events out: admission, the router's steps, text, metrics. Both faces read from here."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from specgrove.outcome import FinishReason, SpeculationStats
from specgrove.text import OutputText, Tokenizer
from specgrove_gateway.admission import Admission
from specgrove_gateway.generation import (
    Delta,
    Finished,
    GenerationEvent,
    GenerationRequest,
    TokenStep,
    Usage,
)
from specgrove_gateway.metrics import GatewayMetrics
from specgrove_gateway.router import Router

_log = logging.getLogger(__name__)


class Generator:
    """Generates. Closing the iterator, or cancelling its task, cancels the verifier's call at once."""

    def __init__(self, tokenizer: Tokenizer, router: Router, admission: Admission, metrics: GatewayMetrics) -> None:
        self._tokenizer = tokenizer
        self._router = router
        self._admission = admission
        self._metrics = metrics

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Deltas, then exactly one Finished. Raises the errors of `Router.steps`, and Overloaded without room."""
        clock = _Clock(self._metrics)
        finished: Finished | None = None
        is_failed = False
        try:
            async with self._admission.slot(), aclosing(self._router.steps(request)) as steps:
                self._metrics.prompt_tokens.inc(len(request.prompt_token_ids))
                text = OutputText(self._tokenizer, request.stop.stop_strings, request.stop.min_tokens)
                async for step in steps:
                    clock.tick(len(step.token_ids))
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
        pieces = [text.push(token_id) for token_id in shown]
        for _ in range(len(step.token_ids) - len(shown)):
            text.skip()
        finish_reason = FinishReason.STOP if text.match is not None else step.finish_reason
        if finish_reason is None:
            return Delta("".join(pieces), step.token_ids)
        return Finished(
            text="".join(pieces) + text.finish(),
            token_ids=step.token_ids,
            finish_reason=finish_reason,
            usage=Usage(len(request.prompt_token_ids), text.num_tokens),
            stats=step.stats or SpeculationStats(),
        )


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
