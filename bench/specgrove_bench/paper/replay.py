"""Trees against tokens that are already known: steps without the target.

    written   the  cat  sat  on   the  mat          step 1, base "the":  cat ─┬─ sat ── in      accepted: cat, sat
                                                                               └─ is             committed: cat sat on
                                                    step 2, base "on":   a, the ── dog           ...

Exact wherever the target's tokens do not depend on the drafts (`ways`). The sessions go side by side, one packed
forward of the SSM a level for all of them, as in a drafter with as many sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specgrove.tree import ROOT, TokenTree
from specgrove_bench.paper.counts import StepCounts
from specgrove_bench.paper.speculator import Speculator
from specgrove_bench.paper.story import Story, Trace
from specgrove_bench.paper.ways import Way
from specgrove_drafter.jobs import Budget


def replay(
    speculator: Speculator,
    traces: Sequence[Trace],
    way: Way,
    budget: Budget,
    tick: Callable[[float], None] = lambda done: None,
) -> list[StepCounts]:
    """The account of each trace when every step drafts a tree within `budget`; `tick` hears the share done so far."""
    counts = [StepCounts() for _ in traces]
    stories = [Story.begin(trace.ask, way) for trace in traces]
    total = sum(len(trace.output_ids) for trace in traces)
    running = [index for index, trace in enumerate(traces) if trace.output_ids]
    while running:
        jobs = [stories[i].job(budget, traces[i].features.get(stories[i].base_len)) for i in running]
        for index, job, draft in zip(running, jobs, speculator.draft(jobs), strict=True):
            trace, story = traces[index], stories[index]
            ahead = trace.output_ids[story.base_len - story.prompt_len :]
            accepted = accepted_path(draft.tree, ahead)
            committed = ahead[: len(accepted) + 1]
            counts[index].record(draft.tree, accepted, len(committed))
            speculator.learn(job, draft, committed)
            story.append(committed)
        running = [i for i in running if stories[i].base_len - stories[i].prompt_len < len(traces[i].output_ids)]
        tick(sum(count.num_committed for count in counts) / total)
    speculator.release(stories)
    return counts


def accepted_path(tree: TokenTree, ahead: Sequence[int]) -> tuple[int, ...]:
    """The nodes of `tree` that the tokens `ahead` of its root follow, top down."""
    child_of = {(tree.parents[node], tree.token_ids[node]): node for node in range(1, tree.num_nodes)}
    path: list[int] = []
    node = ROOT
    for token_id in ahead:
        child = child_of.get((node, token_id))
        if child is None:
            break
        path.append(child)
        node = child
    return tuple(path)
