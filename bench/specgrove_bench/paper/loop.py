"""The loop itself, in this process: draft → packed forward over the trees → verify → commit.

The parts are the services' own (runtime, ensemble, verification); only the wire between them is missing. Without a
speculator it is plain decoding, which is how the traces for `replay` are written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specgrove.features import TargetFeatures
from specgrove.tree import ROOT, TokenTree
from specgrove_bench.paper.counts import NEVER, StepCounts
from specgrove_bench.paper.rule_verdicts import Judge
from specgrove_bench.paper.speculator import Speculator
from specgrove_bench.paper.story import Ask, Story, Trace
from specgrove_bench.paper.target import TargetBatch, TreeRows
from specgrove_bench.paper.ways import Way
from specgrove_drafter.ensemble import EnsembleDraft
from specgrove_drafter.jobs import ZERO_BUDGET, Budget, DraftJob

Tick = Callable[[float], None]


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """One answer and the account of its steps."""

    trace: Trace
    counts: StepCounts
    first_draws: list[int]  # rule `mss`: which draw below the root was accepted (0 = first, or NEVER), a tree each


@dataclass(slots=True, eq=False)
class _Running:
    ask: Ask
    story: Story
    judge: Judge
    features: TargetFeatures | None
    seen_features: dict[int, TargetFeatures] = field(default_factory=dict)
    counts: StepCounts = field(default_factory=StepCounts)
    first_draws: list[int] = field(default_factory=list)
    has_ended: bool = False

    def job(self, budget: Budget) -> DraftJob:
        """What the drafter is asked for the present base, whose features are kept for the trace."""
        if self.features is not None:
            self.seen_features[self.features.base_len] = self.features
        return self.story.job(budget, self.features)

    def played(self) -> Played:
        output_ids = tuple(self.story.token_ids[self.story.prompt_len :])
        return Played(Trace(self.ask, output_ids, self.seen_features), self.counts, self.first_draws)


class Loop:
    """Generations of one batch of prompts under one way."""

    def __init__(self, target: TargetBatch, asks: Sequence[Ask], way: Way, vocab_size: int) -> None:
        self._target = target
        self._running = [
            _Running(
                ask,
                Story.begin(ask, way),
                Judge(way.rule, ask.sampling, vocab_size),
                target.prompt_features.get(index),
            )
            for index, ask in enumerate(asks)
        ]

    def play(
        self, speculator: Speculator | None, budget: Budget = ZERO_BUDGET, tick: Tick = lambda done: None
    ) -> list[Played]:
        """Run every generation to its end; `tick` hears the share done so far."""
        self._target.rewind()
        total = sum(running.ask.max_tokens for running in self._running)
        while live := {i: running for i, running in enumerate(self._running) if not running.has_ended}:
            jobs = {index: running.job(budget) for index, running in live.items()}
            drafts = dict(zip(live, _draft(speculator, list(jobs.values())), strict=True))
            rows = self._target.run({index: draft.tree for index, draft in drafts.items()})
            for index, running in live.items():
                committed = self._finish_step(index, running, drafts[index], rows[index])
                if speculator is not None:
                    speculator.learn(jobs[index], drafts[index], committed)
            ended = sum(running.ask.max_tokens for running in self._running if running.has_ended)
            tick((ended + sum(r.counts.num_committed for r in self._running if not r.has_ended)) / total)
        if speculator is not None:
            speculator.release([running.story for running in self._running])
        return [running.played() for running in self._running]

    def _finish_step(self, index: int, running: _Running, draft: EnsembleDraft, rows: TreeRows) -> tuple[int, ...]:
        """Verify and commit; returns the committed tokens."""
        story = running.story
        ruled = running.judge.verdict(draft, rows.logits, story.base_len)
        committed, running.has_ended = _cut(ruled.verdict.committed_token_ids(draft.tree), story)
        accepted = ruled.verdict.accepted_nodes[: len(committed)]
        running.counts.record(draft.tree, accepted, len(committed))
        if draft.tree.num_draft_nodes:
            running.first_draws.append(NEVER if ruled.first_draw is None else ruled.first_draw)
        story.append(committed)
        if running.has_ended:
            self._target.forget(index)
        else:
            self._target.commit(index, accepted)
            running.features = rows.features_after(accepted[-1] if accepted else ROOT, story.base_len)
        return committed


def _draft(speculator: Speculator | None, jobs: Sequence[DraftJob]) -> list[EnsembleDraft]:
    if speculator is None:
        return [EnsembleDraft(TokenTree.root_only(job.root_token_id), is_behind=False) for job in jobs]
    return speculator.draft(jobs)


def _cut(committed: tuple[int, ...], story: Story) -> tuple[tuple[int, ...], bool]:
    """The tokens up to a stop token or the limit, and whether the generation ends with them."""
    for place, token_id in enumerate(committed, start=1):
        if token_id in story.stop_token_ids or place == story.num_left:
            return committed[:place], True
    return committed, False
