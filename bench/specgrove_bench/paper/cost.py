"""What a step of the target and a level of an SSM cost on this machine, taken in turns in one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

from specgrove.features import TargetFeatures
from specgrove.runtime.loading import LoadedModel
from specgrove.sampling.params import SamplingParams
from specgrove.tree import TokenTree
from specgrove_bench.paper.counts import MAX_WIDTH
from specgrove_bench.paper.speculator import Ssm
from specgrove_bench.paper.story import Ask, Story
from specgrove_bench.paper.target import TargetBatch
from specgrove_bench.paper.ways import Way
from specgrove_bench.prompts import BenchPrompt
from specgrove_drafter.jobs import Budget
from specgrove_drafter.members.draft_model import ROOT_ROW, NodeRow

ROW_COUNTS = (1, 4, 32)  # 4 is the frontier of a best-first tree
_REPEATS = 15
_WARM_UP = 3
_TURNS = _WARM_UP + _REPEATS
_EACH_SESSION = 0.08  # of a one-row step: attention runs session by session


@dataclass(frozen=True, slots=True)
class Costs:
    """Medians in seconds, by number of rows (`ROW_COUNTS`)."""

    target_step_s: tuple[float, ...]
    ssm_level_s: dict[str, tuple[float, ...]]  # by SSM; a level is a forward with the ranking of its children

    def target_s(self, num_rows: int, num_sessions: int) -> float:
        """A guess at one packed forward of the target."""
        return _line(self.target_step_s, num_rows, num_sessions)

    def level_s(self, num_rows: int, num_sessions: int) -> float:
        """A guess at one level of the slowest SSM."""
        return max((_line(points, num_rows, num_sessions) for points in self.ssm_level_s.values()), default=0.0)

    def to_json(self) -> dict[str, object]:
        return {"row_counts": ROW_COUNTS, **asdict(self)}


def measure_costs(target: LoadedModel, ssms: Sequence[Ssm], prompt: BenchPrompt, layers: tuple[int, ...]) -> Costs:
    """Steps and levels over one prompt, one after the other in every round."""
    batch = TargetBatch(target, [prompt.token_ids], max_tokens=2, max_nodes=max(ROW_COUNTS), feature_layers=layers)
    ask = Ask(prompt, SamplingParams(temperature=0.0), max_tokens=2 * _TURNS, stop_token_ids=frozenset())
    timed: dict[tuple[str, int], Callable[[], float]] = {}
    stories: list[tuple[Ssm, Story]] = []
    for rows in ROW_COUNTS:
        timed["", rows] = _target_step(batch, prompt, rows)
        for ssm in ssms:
            stories.append((ssm, Story.begin(ask, Way.GREEDY)))
            timed[ssm.name, rows] = _ssm_level(*stories[-1], rows, batch)
    seen: dict[tuple[str, int], list[float]] = {key: [] for key in timed}
    for turn in range(_TURNS):
        for key, run in timed.items():
            elapsed_s = run()
            if turn >= _WARM_UP:
                seen[key].append(elapsed_s)
    for ssm, story in stories:
        ssm.model.release(story.session)

    def medians(name: str) -> tuple[float, ...]:
        return tuple(median(seen[name, rows]) for rows in ROW_COUNTS)

    return Costs(medians(""), {ssm.name: medians(ssm.name) for ssm in ssms})


def _target_step(batch: TargetBatch, prompt: BenchPrompt, rows: int) -> Callable[[], float]:
    root = prompt.token_ids[-1]
    tree = TokenTree((root, *range(rows - 1)), (-1, *[0] * (rows - 1)))

    def run() -> float:
        began = time.perf_counter()
        batch.run({0: tree})
        elapsed_s = time.perf_counter() - began
        batch.forget(0)
        return elapsed_s

    return run


def _ssm_level(ssm: Ssm, story: Story, rows: int, batch: TargetBatch) -> Callable[[], float]:
    def run() -> float:
        story.append([rows + 1])
        story.reopen()  # or the rows of the time before would answer
        job = story.job(Budget(rows, 2), _as_of_now(batch.prompt_features.get(0), story.base_len))
        while ssm.model.start([job], MAX_WIDTH) == [None]:
            pass  # the first call reads the prompt
        nodes = [NodeRow(job, ROOT_ROW, token_id, 1) for token_id in range(rows)]
        began = time.perf_counter()
        ssm.model.extend(nodes, MAX_WIDTH)
        return time.perf_counter() - began

    return run


def _as_of_now(features: TargetFeatures | None, base_len: int) -> TargetFeatures | None:
    """Features as good as any, fresh for the present base: what they cost does not depend on what they say."""
    return None if features is None else replace(features, base_len=base_len)


def _line(points: Sequence[float], num_rows: int, num_sessions: int) -> float:
    """Along the straight line through the first and the last point."""
    slope = max(points[-1] - points[0], 0.0) / (ROW_COUNTS[-1] - ROW_COUNTS[0])
    return points[0] * (1.0 + _EACH_SESSION * (num_sessions - 1)) + slope * (num_rows - 1)
