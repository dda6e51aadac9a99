"""What is measured on one batch of prompts, as tasks in order: the target's answers, then everything that uses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from specgrove.runtime.loading import LoadedModel
from specgrove.sampling.params import SamplingParams
from specgrove.tree import ExpansionConfig
from specgrove_bench.paper.cost import Costs
from specgrove_bench.paper.counts import MAX_WIDTH, Success
from specgrove_bench.paper.findings import Findings, LineupKey, SuccessKey, WidthKey
from specgrove_bench.paper.lineups import Lineup, merge_lineups, pool_lineups
from specgrove_bench.paper.loop import Loop, Played
from specgrove_bench.paper.options import PaperOptions
from specgrove_bench.paper.places import at_depth, find_places, place_static_tree
from specgrove_bench.paper.progress import Task, Tick
from specgrove_bench.paper.replay import replay
from specgrove_bench.paper.speculator import Speculator, Ssm, SsmPool
from specgrove_bench.paper.story import Ask, Trace
from specgrove_bench.paper.target import TargetBatch
from specgrove_bench.paper.ways import Way
from specgrove_bench.prompts import BenchPrompt
from specgrove_drafter.jobs import Budget

_BOTH = (Way.GREEDY, Way.COUPLED)
WIDTHS = tuple(range(1, MAX_WIDTH + 1))
_USUAL_TOKENS_PER_STEP = 1.8
_SAMPLED_ROW_S = 0.004  # the noise and the law over the whole vocabulary


def width_config(width: int) -> tuple[int, ...]:
    """The paper's width study."""
    return (1, 1, width, 1, 1, 1, 1, 1)


MAX_TREE_NODES = ExpansionConfig(width_config(MAX_WIDTH)).num_draft_nodes


@dataclass(frozen=True, slots=True)
class Setting:
    """What stays the same for every batch."""

    options: PaperOptions
    target: LoadedModel
    pool: SsmPool
    stop_token_ids: frozenset[int]
    costs: Costs
    findings: Findings


@dataclass(slots=True)
class Study:
    """One batch. `first_index` is the number of its first prompt in the run: seeds follow it, not the batches."""

    setting: Setting
    prompts: Sequence[BenchPrompt]
    first_index: int
    _target: TargetBatch | None = None
    _traces: dict[bool, list[Trace]] = field(default_factory=dict)  # by whether they are greedy

    def tasks(self) -> list[Task]:
        """In the order in which they must run."""
        wanted = set(self.setting.options.tables) - {"f"}
        if not wanted:
            return []
        tasks = [self._reading()]
        if wanted != {"c"}:
            tasks.append(self._writing(Way.GREEDY))
        tasks.append(self._writing(Way.COUPLED))
        if wanted & {"a", "b", "c"}:
            for ssm in self.setting.pool.ssms:
                tasks += [self._placing(ssm, way) for way in self._ways_of(ssm)]
        if "d" in wanted:
            tasks += [self._replaying("d", lineup, way) for lineup in merge_lineups(self.setting.pool) for way in _BOTH]
        if "e" in wanted:
            budget = Budget(self.setting.options.max_nodes, self.setting.options.max_depth)
            tasks += [
                self._replaying("e", lineup, way) for lineup in pool_lineups(self.setting.pool, budget) for way in _BOTH
            ]
        if self.setting.pool.ssms and "a" in wanted:
            tasks.append(self._playing("mss at depth 1", (MAX_WIDTH,), self._note_first_draws))
        if self.setting.pool.ssms and "c" in wanted:
            tasks.append(self._playing("mss at width 5", width_config(MAX_WIDTH), self._note_widest))
        return tasks

    def close(self) -> None:
        """Give the target's cache back."""
        self._target = None

    def _ways_of(self, ssm: Ssm) -> tuple[Way, ...]:
        wanted = set(self.setting.options.tables)
        naive = (Way.NAIVE_SAMPLED, Way.NAIVE_TOP_K) if wanted & {"a", "c"} and self._is_lead(ssm) else ()
        greedy = (Way.GREEDY,) if wanted & {"a", "b"} else ()
        return (*greedy, Way.COUPLED, *naive)

    def _is_lead(self, ssm: Ssm) -> bool:
        """The rules are compared on one SSM, the first."""
        return ssm is self.setting.pool.ssms[0]

    # -- the target's answers ----------------------------------------------------------------------------------------

    def _reading(self) -> Task:
        options, layers = self.setting.options, self.setting.pool.layout.layers

        def run(tick: Tick) -> None:
            self._target = TargetBatch(
                self.setting.target,
                [prompt.token_ids for prompt in self.prompts],
                max_tokens=options.max_tokens,
                max_nodes=MAX_TREE_NODES,
                feature_layers=layers,
            )

        rows = sum(len(prompt.token_ids) for prompt in self.prompts)
        return Task("reading the prompts", self.setting.costs.target_s(rows, 1), run)

    def _writing(self, way: Way) -> Task:
        def run(tick: Tick) -> None:
            played = Loop(self._read_target(), self._asks(way), way, self.setting.target.vocab_size).play(
                None, tick=tick
            )
            self._traces[way.is_greedy] = [one.trace for one in played]

        count = len(self.prompts)
        step_s = self.setting.costs.target_s(count, count) + (0 if way.is_greedy else count * _SAMPLED_ROW_S)
        name = "greedy" if way.is_greedy else f"temperature {self.setting.options.temperature:g}"
        return Task(f"the target's answers, {name}", self.setting.options.max_tokens * step_s, run)

    def _asks(self, way: Way) -> list[Ask]:
        options = self.setting.options
        sampling = SamplingParams(temperature=0.0 if way.is_greedy else options.temperature, seed=options.seed)
        return [
            Ask(
                prompt,
                replace(sampling, seed=(options.seed + self.first_index + place) % 2**64),
                options.max_tokens,
                self.setting.stop_token_ids,
            )
            for place, prompt in enumerate(self.prompts)
        ]

    def _read_target(self) -> TargetBatch:
        if self._target is None:
            raise RuntimeError("the tasks of a batch run in order, the reading of its prompts first")
        return self._target

    # -- without the target ------------------------------------------------------------------------------------------

    def _placing(self, ssm: Ssm, way: Way) -> Task:
        findings, wanted = self.setting.findings, self.setting.options.tables
        has_all_widths = way in _BOTH
        widths = (
            WIDTHS if has_all_widths and "b" in wanted else (MAX_WIDTH,) if not way.is_greedy and "c" in wanted else ()
        )
        depth = len(width_config(1)) if widths else max(ssm.max_fed_depth, 1)

        def run(tick: Tick) -> None:
            traces = self._traces[way.is_greedy]
            for trace, places in zip(traces, find_places(ssm, traces, way, depth, tick), strict=True):
                category = trace.ask.prompt.category
                for at in range(1, (ssm.max_fed_depth or 1) + 1):
                    part = Success.of_places(at_depth(places, at))
                    findings.add_success(SuccessKey(ssm.name, way, at), category, part)
                for width in widths:
                    part_of_width = place_static_tree(trace, places, width_config(width))
                    findings.add_width(WidthKey(ssm.name, way, width), category, part_of_width)

        count = len(self.prompts)
        levels = self.setting.options.max_tokens * (depth if ssm.is_feature_fed else 1)
        return Task(f"places of {ssm.name}, {way}", levels * self.setting.costs.level_s(count, count), run)

    def _replaying(self, table: str, lineup: Lineup, way: Way) -> Task:
        findings = self.setting.findings

        def run(tick: Tick) -> None:
            traces = self._traces[way.is_greedy]
            speculator = Speculator(lineup.members)
            findings.member_names[table, lineup.name] = speculator.member_names
            for trace, counts in zip(traces, replay(speculator, traces, way, lineup.budget, tick), strict=True):
                findings.add_lineup(LineupKey(table, lineup.name, way), trace.ask.prompt.category, counts)

        steps = self.setting.options.max_tokens / _USUAL_TOKENS_PER_STEP
        level_s = self.setting.costs.level_s(4 * len(self.prompts), len(self.prompts))
        estimate_s = steps * lineup.budget.max_depth * lineup.num_models * level_s
        return Task(f"table {table}: {lineup.name}, {way}", estimate_s, run)

    # -- the loop itself ---------------------------------------------------------------------------------------------

    def _playing(self, title: str, widths: tuple[int, ...], note: Callable[[Ssm, list[Played]], None]) -> Task:
        ssm = self.setting.pool.ssms[0]
        config = ExpansionConfig(widths)
        budget = Budget(config.num_draft_nodes, config.max_depth)

        def run(tick: Tick) -> None:
            loop = Loop(self._read_target(), self._asks(Way.MSS), Way.MSS, self.setting.target.vocab_size)
            speculator = Speculator([ssm.grower(",".join(map(str, widths)))])
            note(ssm, loop.play(speculator, budget, tick))

        count, costs = len(self.prompts), self.setting.costs
        rows = count * (budget.max_nodes + 1)
        step_s = costs.target_s(rows, count) + budget.max_depth * costs.level_s(4 * count, count)
        step_s += count * _SAMPLED_ROW_S * 2
        return Task(f"{title}: {ssm.name}", self.setting.options.max_tokens / _USUAL_TOKENS_PER_STEP * step_s, run)

    def _note_first_draws(self, ssm: Ssm, played: list[Played]) -> None:
        for one in played:
            part = Success.of_places(one.first_draws)
            self.setting.findings.add_success(SuccessKey(ssm.name, Way.MSS), one.trace.ask.prompt.category, part)

    def _note_widest(self, ssm: Ssm, played: list[Played]) -> None:
        for one in played:
            key = WidthKey(ssm.name, Way.MSS, MAX_WIDTH)
            self.setting.findings.add_width(key, one.trace.ask.prompt.category, one.counts)
