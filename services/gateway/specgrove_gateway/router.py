"""One generation, from whichever verifiers it takes: placed, retried, resumed token-exactly.

    place ─▶ claim an epoch ─▶ stream steps ──────────────▶ finished
      ▲                              │ verifier lost or full
      └──── new place, new epoch, ◀──┘
            tokens received so far go along

The noise of a token depends on (seed, position, token) alone, so another verifier goes on with the very same tokens.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from specgrove.errors import Overloaded, PeerUnavailable, SessionTaken, SpecgroveError, StaleEpoch
from specgrove.outcome import FinishReason, SpeculationStats
from specgrove_gateway.generation import GenerationRequest, TokenStep
from specgrove_gateway.metrics import GatewayMetrics
from specgrove_gateway.placements import Placements
from specgrove_gateway.verifier_pool import Verifier, VerifierPool

_log = logging.getLogger(__name__)


class Router:
    """Runs requests on the pool. At most `max_attempts` verifiers per generation, `request_timeout_s` in all."""

    def __init__(
        self,
        pool: VerifierPool,
        placements: Placements,
        metrics: GatewayMetrics,
        *,
        max_attempts: int,
        failover_wait_s: float,
        request_timeout_s: float,
    ) -> None:
        self._pool = pool
        self._placements = placements
        self._metrics = metrics
        self._max_attempts = max_attempts
        self._failover_wait_s = failover_wait_s
        self._request_timeout_s = request_timeout_s

    async def steps(self, request: GenerationRequest) -> AsyncGenerator[TokenStep, None]:
        """The steps of the generation, the last one with its finish reason.

        Raises PeerUnavailable when no verifier is left, Overloaded when all are full, StaleEpoch when somebody else
        has taken the session over, and what a verifier says about the request itself.
        """
        deadline = time.monotonic() + self._request_timeout_s
        committed: list[int] = []
        full: set[str] = set()  # addresses that had no room for this request
        for attempt in range(1, self._max_attempts + 1):
            verifier = await self._place(request, full)
            try:
                async with aclosing(self._run_on(verifier, request, committed, deadline)) as steps:
                    async for step in steps:
                        yield step
                return
            except Overloaded as error:
                full.add(verifier.address)
                failure: SpecgroveError = error
            except PeerUnavailable as error:
                if time.monotonic() >= deadline:
                    raise PeerUnavailable(
                        f"the generation took longer than {self._request_timeout_s:g} s and was stopped; ask for fewer "
                        "tokens"
                    ) from error
                self._pool.report_lost(verifier)
                failure = error
            except SessionTaken:
                raise  # by a newer call: claiming a newer epoch now would only end that one in turn
            except StaleEpoch as error:
                if committed:
                    raise  # the session has a newer owner: this one must stop speaking
                failure = error
            finish = _finish_without_verifier(request, committed)
            if finish is not None:
                yield TokenStep((), finish_reason=finish, stats=SpeculationStats())
                return
            if attempt == self._max_attempts:
                raise failure
            self._metrics.generation_resumes.labels("decode" if committed else "start").inc()
            _log.warning(
                "verifier %s gave up after %d tokens, trying another: %s", verifier.address, len(committed), failure
            )

    async def _run_on(
        self, verifier: Verifier, request: GenerationRequest, committed: list[int], deadline: float
    ) -> AsyncGenerator[TokenStep, None]:
        info = verifier.info
        if info is None:
            raise PeerUnavailable(f"verifier {verifier.address} has not described itself yet")
        epoch = await self._placements.claim(request.session_id, info.verifier_id, info.incarnation)
        prompt_len = len(request.prompt_token_ids)
        with verifier.call():
            steps = verifier.link.generate(
                request, epoch=epoch, committed=tuple(committed), timeout_s=max(0.1, deadline - time.monotonic())
            )
            try:
                async with aclosing(steps):
                    async for step in steps:
                        if step.epoch < epoch:
                            continue  # an older owner speaking
                        committed.extend(step.token_ids)
                        self._placements.note_progress(request.session_id, epoch, prompt_len + len(committed))
                        yield step
                        if step.finish_reason is not None:
                            return
            finally:
                self._placements.note_progress(request.session_id, epoch, prompt_len + len(committed))
        raise PeerUnavailable(f"verifier {verifier.address} ended the stream without a finish reason")

    async def _place(self, request: GenerationRequest, full: set[str]) -> Verifier:
        company = request.company
        sticky_id = company.verifier_id if company is not None else None
        if sticky_id is None and not request.is_new_session:
            sticky_id = await self._placements.sticky_verifier(request.session_id)
        give_up_at = time.monotonic() + self._failover_wait_s
        while True:
            verifier = self._pool.choose(sticky_id, full)
            if verifier is not None:
                if company is not None and request.choice_index == 0 and verifier.info is not None:
                    company.verifier_id = verifier.info.verifier_id
                return verifier
            if full:
                raise Overloaded("every verifier is full; try again later", retry_after_s=1.0)
            remaining_s = give_up_at - time.monotonic()
            if remaining_s <= 0 or not await self._pool.wait_for_change(remaining_s):
                raise PeerUnavailable("no verifier is available; try again in a few seconds")


def _finish_without_verifier(request: GenerationRequest, committed: list[int]) -> FinishReason | None:
    """The finish reason when the tokens are complete and only the verifier's last word was lost."""
    if len(committed) >= request.stop.max_tokens:
        return FinishReason.LENGTH
    if committed and len(committed) > request.stop.min_tokens and committed[-1] in request.stop.stop_token_ids:
        return FinishReason.STOP
    return None
