"""What each ensemble member contributes is counted under its name, as long as its drafter is there."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from prometheus_client import CollectorRegistry

from specgrove.runtime.loading import LoadedModel
from specgrove.tree import TokenTree
from specgrove_verifier.drafter_pool import Drafter
from specgrove_verifier.mailbox import MEMBER_BITS
from specgrove_verifier.member_metrics import MemberMetrics
from support.engine_stand import InProcessDrafter, Mirror, Stand, running_stand

PREFIX = "specgrove:spec_decode_num_"
PROPOSED, ACCEPTED, ALONE = (
    f"{PREFIX}draft_tokens_by_member_total",
    f"{PREFIX}accepted_tokens_by_member_total",
    f"{PREFIX}accepted_tokens_only_member_total",
)


@dataclass(frozen=True, slots=True)
class Named:
    drafter_id: str
    member_names: tuple[str, ...] = ("ssm", "prompt_lookup")


A, B = Named("a"), Named("b")
# root ─┬─ 5 (both members of a) ── 6 (a's ssm, b's ssm)
#       └─ 7 (a's prompt_lookup)
TREE = TokenTree((1, 5, 6, 7), (-1, 0, 1, 0), (0, 0b11, 0b01 | 0b01 << MEMBER_BITS, 0b10))


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def counts(registry: CollectorRegistry, drafter: str, member: str) -> list[float | None]:
    """Proposed, accepted, accepted alone; None where there is no such series."""
    labels = {"drafter": drafter, "member": member}
    return [registry.get_sample_value(name, labels) for name in (PROPOSED, ACCEPTED, ALONE)]


def test_a_node_counts_for_everyone_who_proposed_it(registry: CollectorRegistry) -> None:
    MemberMetrics(registry).record(TREE, (1, 2), (A, B))
    assert counts(registry, "a", "ssm") == [2, 2, 0]
    assert counts(registry, "a", "prompt_lookup") == [2, 1, 0]
    assert counts(registry, "b", "ssm") == [1, 1, 0]


def test_what_nobody_else_proposed_counts_as_accepted_alone(registry: CollectorRegistry) -> None:
    metrics = MemberMetrics(registry)
    metrics.record(TREE, (3,), (A, B))
    metrics.record(TokenTree((1, 5), (-1, 0), (0, 0b10)), (1,), (B,))
    assert counts(registry, "a", "prompt_lookup") == [2, 1, 1]
    assert counts(registry, "b", "prompt_lookup") == [1, 1, 1]
    assert counts(registry, "a", "ssm") == [2, 0, 0]


def test_a_drafter_that_left_is_not_counted_and_its_series_end(registry: CollectorRegistry) -> None:
    metrics = MemberMetrics(registry)
    metrics.record(TREE, (1,), (A, B))
    metrics.forget(A, ())
    metrics.forget(A, ())
    metrics.record(TREE, (1, 2), (None, B))
    assert counts(registry, "a", "ssm") == [None, None, None]
    assert counts(registry, "b", "ssm") == [2, 1, 0]


def test_a_member_without_a_name_goes_by_its_number(registry: CollectorRegistry) -> None:
    MemberMetrics(registry).record(TREE, (1,), (Named("a", ("ssm",)),))
    assert counts(registry, "a", "member 1") == [2, 1, 0]


def test_names_are_cut_to_a_reasonable_length(registry: CollectorRegistry) -> None:
    metrics = MemberMetrics(registry)
    endless = Named("d" * 5000, ("m" * 5000, "n" * 5000))
    metrics.record(TREE, (1,), (endless,))
    assert counts(registry, "d" * 64, "m" * 64) == [2, 1, 0]
    metrics.forget(endless, ())
    assert counts(registry, "d" * 64, "m" * 64) == [None, None, None]


def propose_next(mask: int, truth: list[int]) -> InProcessDrafter:
    """A drafter that knows the next token and a wrong one."""

    def propose(mirror: Mirror) -> TokenTree:
        known = len(mirror.token_ids)
        right = truth[known] if known < len(truth) else 0
        return TokenTree((mirror.token_ids[-1], right, (right + 1) % 90), (-1, 0, 0), (0, mask, 0b10))

    return InProcessDrafter(propose)


def member_counts(stand: Stand, number: int, member: str) -> list[float]:
    labels = {"drafter": f"drafter-{number}", "member": member}
    return [stand.sample(name, **labels) for name in (PROPOSED, ACCEPTED, ALONE)]


def test_two_drafters_of_one_session_are_told_apart(target: LoadedModel) -> None:
    prompt = [4, 5, 6]
    with running_stand(target) as stand:
        truth = prompt + stand.generate(prompt, 9).token_ids
    first, second = propose_next(0b01, truth), propose_next(0b11, truth)
    second.number = 2
    with running_stand(target, drafters_per_session=2, max_nodes=8) as stand:
        stand.attach(first, second)
        assert prompt + stand.generate(prompt, 9).token_ids == truth
        num_accepted = stand.sample("specgrove:spec_decode_num_accepted_tokens_total")
        assert num_accepted > 0
        # Nothing is said of names here: members go by their numbers. Both drafters say the same.
        for number in (1, 2):
            proposed, accepted, alone = member_counts(stand, number, "member 0")
            assert (proposed, accepted, alone) == (num_accepted, num_accepted, 0)
        assert member_counts(stand, 1, "member 1") == [num_accepted, 0, 0]
        assert member_counts(stand, 2, "member 1") == [2 * num_accepted, num_accepted, 0]
        stand.engine.detach(1)
        stand.settle()
        labels = {"drafter": "drafter-1", "member": "member 0"}
        assert stand.registry.get_sample_value(PROPOSED, labels) is None
        assert member_counts(stand, 2, "member 0")[0] == num_accepted


def test_series_last_as_long_as_the_last_stream_of_a_drafter(target: LoadedModel) -> None:
    prompt = [4, 5, 6]
    with running_stand(target) as stand:
        truth = prompt + stand.generate(prompt, 5).token_ids
    with running_stand(target, drafters_per_session=2, max_nodes=8) as stand:
        for number in (1, 2):
            drafter = propose_next(0b01, truth)
            drafter.number, drafter.engine = number, stand.engine
            stand.engine.attach(Drafter(number, "reconnecting", 64, drafter, member_names=("ssm",)))
        stand.generate(prompt, 5)
        seen = counts(stand.registry, "reconnecting", "ssm")
        assert seen[0]
        stand.engine.detach(1)
        stand.settle()
        assert counts(stand.registry, "reconnecting", "ssm") == seen
        stand.engine.detach(2)
        stand.settle()
        assert counts(stand.registry, "reconnecting", "ssm") == [None, None, None]


def test_a_drafter_that_comes_back_with_other_members_leaves_no_series_behind(target: LoadedModel) -> None:
    """As in a rolling update: the new stream is there before the old one ends."""
    prompt = [4, 5, 6]
    with running_stand(target) as stand:
        truth = prompt + stand.generate(prompt, 5).token_ids
    with running_stand(target, drafters_per_session=2, max_nodes=8) as stand:
        for number in range(1, 4):
            drafter = propose_next(0b11, truth)
            drafter.number, drafter.engine = number, stand.engine
            names = (f"ssm of release {number}", "lookup")
            stand.engine.attach(Drafter(number, "updated", 64, drafter, member_names=names))
            stand.generate(prompt, 5)
            stand.engine.detach(number - 1)
            stand.settle()
        for number in (1, 2):
            assert counts(stand.registry, "updated", f"ssm of release {number}") == [None, None, None]
        for member in ("ssm of release 3", "lookup"):
            assert counts(stand.registry, "updated", member)[0]


def test_what_lies_behind_a_stop_token_counts_for_nobody(target: LoadedModel) -> None:
    prompt = [4, 5, 6]
    with running_stand(target) as stand:
        truth = prompt + stand.generate(prompt, 12).token_ids

    def propose(mirror: Mirror) -> TokenTree:
        known = len(mirror.token_ids)
        chain = truth[known : known + mirror.budget.max_depth]
        tree = TokenTree.from_paths(mirror.token_ids[-1], [chain])
        return replace(tree, members=(0, *[0b1] * tree.num_draft_nodes))

    stop = truth[len(prompt) + 2]
    with running_stand(target, InProcessDrafter(propose), max_nodes=8) as stand:
        assert stand.generate(prompt, 12, stop_token_ids=(stop,)).token_ids[-1] == stop
        proposed, accepted, alone = member_counts(stand, 1, "member 0")
        assert proposed > accepted
        assert accepted == alone == stand.sample("specgrove:spec_decode_num_accepted_tokens_total")
