"""Where the target's tokens stand among an SSM's children, and what static trees make of it.

    written       the cat sat on                    places[base][depth - 1]
    base "the"    children: cat dog a               0: "cat" is the first child
        └─ cat    children: is sat was              1: "sat" is the second, one deeper
            └─ sat children: on in at               0

A node of a tree is looked at only when everything above it was right, so the places along what the target wrote decide
what any static tree accepts: width k at a depth accepts the token there if its place is below k. One run of the SSM
along the text thus stands for the trees of all widths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from specgrove.tree import ExpansionConfig
from specgrove_bench.paper.counts import MAX_WIDTH, NEVER, StepCounts
from specgrove_bench.paper.speculator import Ssm
from specgrove_bench.paper.story import Story, Trace
from specgrove_bench.paper.ways import Way
from specgrove_drafter.jobs import Budget, DraftJob
from specgrove_drafter.members.draft_model import ROOT_ROW, NodeRow
from specgrove_drafter.trees.growth import Children

Places = list[list[int]]  # [output token that is the first below its base][depth - 1]


def find_places(
    ssm: Ssm,
    traces: Sequence[Trace],
    way: Way,
    max_depth: int,
    tick: Callable[[float], None] = lambda done: None,
) -> list[Places]:
    """The places of every token of each trace, below every base, down to `max_depth`.

    Without features the children of a node depend on its path alone, so the deeper places are those of later bases.
    """
    is_fed = any(trace.features for trace in traces) and ssm.is_feature_fed
    # Children are wanted of the last token too, where a generation would draft nothing any more.
    roomy = [replace(trace.ask, max_tokens=trace.ask.max_tokens + max_depth + 1) for trace in traces]
    stories = [Story.begin(ask, way) for ask in roomy]
    places: list[Places] = [[] for _ in traces]
    longest = max((len(trace.output_ids) for trace in traces), default=0)
    for start in range(longest):
        live = [i for i, trace in enumerate(traces) if start < len(trace.output_ids)]
        jobs = [_job(stories[i], traces[i], max_depth) for i in live]
        found = _below(ssm, jobs, [traces[i].output_ids[start:] for i in live], max_depth if is_fed else 1)
        for index, column in zip(live, found, strict=True):
            places[index].append(column)
            stories[index].append([traces[index].output_ids[start]])
        tick((start + 1) / longest)
    for story in stories:
        ssm.model.release(story.session)
    return places if is_fed else [_from_later_bases(rows, max_depth) for rows in places]


def place_static_tree(trace: Trace, places: Places, widths: Sequence[int]) -> StepCounts:
    """The account of `trace` when every step drafts the static tree `widths`."""
    counts = StepCounts()
    num_nodes = ExpansionConfig(tuple(widths)).num_draft_nodes
    start = 0
    while start < len(trace.output_ids):
        depth_limit = min(len(widths), trace.ask.max_tokens - start - 1)
        accepted = 0
        while accepted < min(depth_limit, len(places[start])) and places[start][accepted] < widths[accepted]:
            accepted += 1
        num_committed = min(accepted + 1, len(trace.output_ids) - start)
        counts.record_depths(num_nodes, depth_limit, accepted, num_committed)
        start += num_committed
    return counts


def at_depth(places: Places, depth: int) -> Iterable[int]:
    """The places at one depth (1 = children of the root), over all bases that have a token there."""
    return (row[depth - 1] for row in places if len(row) >= depth)


def _job(story: Story, trace: Trace, max_depth: int) -> DraftJob:
    # What was computed along the text below an earlier base saw that base's features, and must not answer for this one.
    story.reopen()
    return story.job(Budget(MAX_WIDTH, max_depth), trace.features.get(story.base_len))


def _below(ssm: Ssm, jobs: Sequence[DraftJob], ahead: Sequence[Sequence[int]], max_depth: int) -> list[list[int]]:
    """For each job the places of the tokens `ahead` of its base, walking down along them."""
    roots = ssm.model.start(jobs, MAX_WIDTH)
    while any(children is None for children in roots):
        roots = ssm.model.start(jobs, MAX_WIDTH)
    found = [[_place(children, tokens[0])] for children, tokens in zip(roots, ahead, strict=True)]
    row_of = [ROOT_ROW] * len(jobs)
    for depth in range(1, max_depth):
        live = [i for i, tokens in enumerate(ahead) if depth < len(tokens)]
        if not live:
            break
        nodes = [NodeRow(jobs[i], row_of[i], ahead[i][depth - 1], depth) for i in live]
        for index, expanded in zip(live, ssm.model.extend(nodes, MAX_WIDTH), strict=True):
            row_of[index] = expanded.row
            found[index].append(_place(expanded.children, ahead[index][depth]))
    return found


def _place(children: Children | None, token_id: int) -> int:
    if children is None or token_id not in children.token_ids:
        return NEVER
    return children.token_ids.index(token_id)


def _from_later_bases(rows: Places, max_depth: int) -> Places:
    return [[later[0] for later in rows[start : start + max_depth]] for start in range(len(rows))]
