"""Prompt lookup: copies what followed before, and learns from the session how far to trust it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from specgrove.sampling.params import SamplingParams
from specgrove.sampling.rules import Rule
from specgrove_drafter.jobs import Budget, DraftJob, SessionRef
from specgrove_drafter.members import prompt_lookup
from specgrove_drafter.members.prompt_lookup import PromptLookupMember
from specgrove_drafter.trees.proposal import Proposal, select_tree
from support.drafter_fakes import ask, make_job

LIST = [10, 11, 12, 13, 14, 15, 16]


def paths(job: DraftJob, proposal: Proposal) -> frozenset[tuple[int, ...]]:
    return select_tree(job.root_token_id, [(1, proposal)], Budget(1000, 1000)).paths()


def first_estimate(proposal: Proposal) -> float:
    return math.exp(proposal.log_path_probs[0])


def test_copies_what_followed_the_longest_match() -> None:
    job = make_job([*LIST, 50, 51, *LIST[:3]], budget=Budget(8, 3))
    [draft] = ask(PromptLookupMember(), [job])
    assert (13, 14, 15) in paths(job, draft.proposal)


def test_several_continuations_make_branches() -> None:
    job = make_job([1, 2, 70, 1, 2, 80, 1, 2], budget=Budget(8, 2))
    [draft] = ask(PromptLookupMember(), [job])
    assert {(70, 1), (80, 1)} <= paths(job, draft.proposal)


def test_continuations_branch_below_the_first_token() -> None:
    job = make_job([1, 2, 3, 70, 1, 2, 3, 80, 1, 2, 3, 70, 1, 2], budget=Budget(3, 2))
    [draft] = ask(PromptLookupMember(), [job])
    assert paths(job, draft.proposal) == {(), (3,), (3, 70), (3, 80)}


def test_the_more_frequent_continuation_comes_first() -> None:
    job = make_job([1, 2, 70, 1, 2, 70, 1, 2, 80, 1, 2], budget=Budget(2, 1))
    [draft] = ask(PromptLookupMember(), [job])
    assert draft.proposal.token_ids == [70, 80]
    often, seldom = (math.exp(score) for score in draft.proposal.log_path_probs)
    assert often == pytest.approx(2 * seldom)


def test_a_shorter_match_adds_what_the_longer_one_has_not_seen() -> None:
    job = make_job([5, 2, 80, 1, 2, 70, 1, 2], budget=Budget(4, 1))
    [draft] = ask(PromptLookupMember(), [job])
    assert draft.proposal.token_ids == [70, 80]


def test_a_budget_bounds_the_proposal() -> None:
    job = make_job(LIST * 3, budget=Budget(3, 9))
    [draft] = ask(PromptLookupMember(), [job])
    assert len(draft.proposal) == 3
    [none] = ask(PromptLookupMember(), [job.without_budget()])
    assert len(none.proposal) == 0


def test_new_text_proposes_nothing() -> None:
    [draft] = ask(PromptLookupMember(), [make_job([1, 2, 3, 4])])
    assert len(draft.proposal) == 0


def test_a_copy_may_run_into_the_text_it_extends() -> None:
    job = make_job([5, 6, 5, 6, 5, 6], budget=Budget(8, 8))
    [draft] = ask(PromptLookupMember(), [job])
    assert (5, 6) in paths(job, draft.proposal)


def test_a_longer_match_is_trusted_more() -> None:
    [short] = ask(PromptLookupMember(), [make_job([*LIST, 90, 12])])
    [long] = ask(PromptLookupMember(), [make_job([*LIST, 90, *LIST[:5]])])
    assert first_estimate(long.proposal) > first_estimate(short.proposal)


def test_a_session_that_copies_comes_to_trust_its_copies() -> None:
    text = LIST * 4
    member = PromptLookupMember()
    [fresh] = ask(member, [make_job(text, opened_len=len(text))])
    [proven] = ask(PromptLookupMember(), [make_job(text, opened_len=len(LIST))])
    assert first_estimate(proven.proposal) > first_estimate(fresh.proposal)


def test_nothing_is_copied_past_a_stop_token() -> None:
    job = make_job([1, 2, 3, 9, 4, 1, 2, 3], budget=Budget(8, 5), stop_token_ids=frozenset({9}))
    [draft] = ask(PromptLookupMember(), [job])
    assert paths(job, draft.proposal) == {(), (9,)}


def test_the_index_follows_a_growing_mirror_and_starts_anew_with_a_new_one() -> None:
    member = PromptLookupMember()
    tokens = [1, 2, 3, 1]
    grown = make_job(tokens)
    grown.token_ids.append(2)  # type: ignore[attr-defined]
    ask(member, [grown])
    longer = DraftJob(
        grown.session, grown.token_ids, 5, 0, 4, grown.sampling, frozenset(), grown.budget, grown.arrived_s
    )
    [draft] = ask(member, [longer])
    assert (3, 1) in paths(longer, draft.proposal)
    reopened = make_job([7, 8, 7])
    [draft] = ask(member, [reopened])
    assert paths(reopened, draft.proposal) >= {(8,)}
    assert (3,) not in paths(reopened, draft.proposal)


def test_a_base_that_is_gone_gets_nothing() -> None:
    member = PromptLookupMember()
    job = make_job(LIST * 3)
    ask(member, [job])
    [stale] = ask(member, [replace(job, base_len=job.base_len - 2)])
    assert len(stale.proposal) == 0


def test_a_session_that_is_opened_again_further_on_is_not_read_again() -> None:
    member = PromptLookupMember()
    job = make_job([*LIST, 50, *LIST[:3]], budget=Budget(2, 2))
    ask(member, [job])
    indexed = member._sessions[job.session]
    reopened = make_job([*job.token_ids, 13], budget=Budget(2, 2))
    [draft] = ask(member, [reopened])
    assert paths(reopened, draft.proposal) == {(), (14,), (14, 15)}
    assert member._sessions[job.session] is indexed
    assert indexed.token_ids is reopened.token_ids


def test_no_text_of_one_session_reaches_another() -> None:
    member = PromptLookupMember()
    ask(member, [make_job(LIST * 3, session=SessionRef(1, 1))])
    [other] = ask(member, [make_job(LIST[:3], session=SessionRef(1, 2))])
    assert len(other.proposal) == 0


@pytest.mark.parametrize("rule", [Rule.NAIVE, Rule.MSS])
def test_noise_is_for_the_rule_that_shares_it(rule: Rule) -> None:
    sampled = replace(make_job(LIST * 2, sampling=SamplingParams(temperature=1.0, seed=3)), rule=rule)
    [draft] = ask(PromptLookupMember(), [sampled])
    [greedy] = ask(PromptLookupMember(), [make_job(LIST * 2)])
    assert draft == greedy


def test_sampling_estimates_use_the_known_noise() -> None:
    text = [1, 2, 3, 4, 1, 2]
    estimates = []
    for seed in range(200):
        job = make_job(text, sampling=SamplingParams(temperature=1.0, seed=seed), budget=Budget(1, 1))
        [draft] = ask(PromptLookupMember(), [job])
        estimates.append(first_estimate(draft.proposal))
    [greedy] = ask(PromptLookupMember(), [make_job(text, budget=Budget(1, 1))])
    assert max(estimates) > min(estimates) + 0.3
    # Knowing the noise moves each estimate but not their mean.
    assert abs(sum(estimates) / len(estimates) - first_estimate(greedy.proposal)) < 0.06


def test_a_long_context_is_read_over_several_drafts() -> None:
    member = PromptLookupMember()
    job = make_job(list(range(prompt_lookup.MAX_TOKENS_READ)) + [5, 6, 5])
    [first] = ask(member, [job.without_budget()])
    [second] = ask(member, [job])
    assert first.is_behind
    assert not second.is_behind
    assert (6,) in paths(job, second.proposal)


def test_release_forgets_the_session() -> None:
    member = PromptLookupMember()
    ask(member, [make_job(session=SessionRef(1, 1))])
    member.release(SessionRef(1, 1))
    member.release(SessionRef(1, 1))
    assert not member._sessions
