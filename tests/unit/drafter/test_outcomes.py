"""Which outcomes of a verification are likely, and what is computed ahead of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from specgrove.tree import TokenTree
from specgrove_drafter.ensemble import AheadStep, Ensemble
from specgrove_drafter.jobs import Budget, DraftJob, SessionRef
from specgrove_drafter.members.ssm import SsmMember
from specgrove_drafter.trees.growth import BestFirst, BestFirstPolicy, Children
from specgrove_drafter.trees.outcomes import OutcomeLimits, Path, likeliest_outcomes
from specgrove_drafter.trees.proposal import as_estimated
from specgrove_drafter.trees.sent_draft import SentDraft
from support.drafter_fakes import ScriptedMember, TableModel, chain_proposal, children, make_job

# 3 is followed by 4 or 5, 4 by 6, 6 by 7, 7 by 8.
LAWS = {3: {4: 0.6, 5: 0.3, 9: 0.05}, 4: {6: 0.9}, 5: {7: 0.9}, 6: {7: 0.9}, 7: {8: 0.9}, 8: {4: 0.9}}
MANY = OutcomeLimits(8, 0.15)
FEW = OutcomeLimits(2, 0.15)
POLICY = BestFirstPolicy(BestFirst(min_path_prob=0.5))


def sent_draft(chains: Sequence[Sequence[int]], prob: float, job: DraftJob | None = None) -> SentDraft:
    job = job or make_job()
    proposal = chain_proposal(chains, prob)
    return SentDraft(job, TokenTree.from_paths(job.root_token_id, chains), ((0, proposal),))


def law_of(known: dict[Path, dict[int, float]]) -> dict[Path, Children]:
    return {path: children(law) for path, law in known.items()}


def test_an_outcome_is_a_path_and_a_token_that_is_not_drafted_there() -> None:
    sent = sent_draft([(4, 6)], 0.8)
    known = law_of({(): {4: 0.8, 5: 0.19}, (4,): {6: 0.8, 7: 0.1}, (4, 6): {1: 0.9, 2: 0.05}})
    outcomes = likeliest_outcomes(sent, known.get, as_estimated, MANY)
    assert outcomes.paths == ((4, 6, 1), (5,))  # 0.8 * 0.8 * 0.9 and 0.19; (4, 7) has 0.08
    assert outcomes.unknown == ()


def test_only_the_best_are_named() -> None:
    sent = sent_draft([(4, 6)], 0.8)
    known = law_of({(): {4: 0.8, 5: 0.19}, (4,): {6: 0.8}, (4, 6): {1: 0.9}})
    assert likeliest_outcomes(sent, known.get, as_estimated, OutcomeLimits(1, 0.15)).paths == ((4, 6, 1),)


def test_likely_leaves_without_a_law_are_asked_for_first() -> None:
    sent = sent_draft([(4, 6)], 0.8)
    known = law_of({(): {4: 0.8, 5: 0.19}, (4,): {6: 0.8}})
    outcomes = likeliest_outcomes(sent, known.get, as_estimated, MANY)
    assert outcomes.paths == ()
    assert outcomes.unknown == ((4, 6),)


def test_unlikely_nodes_and_outcomes_are_left_alone() -> None:
    sent = sent_draft([(4,)], MANY.min_prob / 2)
    known = law_of({(): {4: 0.5, 5: MANY.min_prob / 2}})
    assert likeliest_outcomes(sent, known.get, as_estimated, MANY).paths == ()


def test_nothing_comes_after_a_stop_token() -> None:
    sent = sent_draft([(4, 2)], 0.9, make_job(stop_token_ids=frozenset({2})))
    known = law_of({(): {4: 0.9}, (4,): {2: 0.9}, (4, 2): {1: 0.9}})
    assert likeliest_outcomes(sent, known.get, as_estimated, MANY).paths == ()


def test_estimates_count_as_calibrated() -> None:
    sent = sent_draft([(4,)], 0.9)
    known = law_of({(): {4: 0.9}, (4,): {6: 0.9}})
    assert likeliest_outcomes(sent, known.get, as_estimated, MANY).paths == ((4, 6),)
    assert likeliest_outcomes(sent, known.get, lambda depth, log_prob: log_prob - 3.0, MANY).paths == ()


def test_a_node_that_nobody_estimated_has_no_outcomes() -> None:
    sent = SentDraft(make_job(), TokenTree.from_paths(3, [(4,)]))
    assert sent.log_path_probs() == [0.0, -math.inf]


def drafted(ensemble: Ensemble, job: DraftJob) -> SentDraft:
    [draft] = ensemble.draft([job])
    return SentDraft(job, draft.tree, draft.proposals)


def run_ahead(ensemble: Ensemble, sent: SentDraft, max_steps: int = 20) -> list[AheadStep]:
    steps = []
    for _ in range(max_steps):
        [step] = ensemble.look_ahead([sent], FEW)
        steps.append(step)
        if step.is_done:
            return steps
    raise AssertionError("drafting ahead does not end")


def test_after_looking_ahead_the_next_draft_runs_no_forward_but_its_start() -> None:
    model = TableModel(LAWS)
    ensemble = Ensemble([SsmMember("ssm", model, POLICY)])
    job = make_job((1, 2, 3), budget=Budget(4, 3))
    sent = drafted(ensemble, job)
    steps = run_ahead(ensemble, sent)
    guess = steps[-1].guesses[0]
    assert guess not in sent.tree.paths()
    assert guess[:-1] in sent.tree.paths()
    # The fake finds laws by the whole text, as the runtime does by its rows.
    found = {path for paths in model.foreseen for path in paths}
    next_job = make_job((*job.token_ids, *guess), budget=job.budget)
    foreseen = drafted(Ensemble([SsmMember("ssm", TableModel(LAWS), POLICY)]), next_job)
    expanded = [path for path in foreseen.tree.paths() if any(other[:-1] == path for other in foreseen.tree.paths())]
    assert {(*guess, *path) for path in expanded} <= found


def test_one_step_is_at_most_one_forward() -> None:
    model = TableModel(LAWS)
    ensemble = Ensemble([SsmMember("ssm", model, POLICY)])
    sent = [drafted(ensemble, make_job((1, 2, 3), session=SessionRef(1, key), budget=Budget(4, 3))) for key in range(3)]
    for _ in range(10):
        before = ensemble.num_forwards
        steps = ensemble.look_ahead(sent, FEW)
        assert ensemble.num_forwards <= before + 1
        if all(step.is_done for step in steps):
            break
    else:
        pytest.fail("drafting ahead does not end")
    assert any(len({*paths}) > 0 for paths in model.foreseen)


def test_a_full_cache_ends_the_work() -> None:
    model = TableModel(LAWS, has_room=False)
    ensemble = Ensemble([SsmMember("ssm", model, POLICY)])
    sent = drafted(ensemble, make_job(budget=Budget(4, 3)))
    assert run_ahead(ensemble, sent)[-1].is_done
    assert model.foreseen == []


def test_a_session_that_is_not_read_is_left_alone() -> None:
    session = SessionRef(1, 1)
    model = TableModel(LAWS, unread={session})
    ensemble = Ensemble([SsmMember("ssm", model, POLICY), ScriptedMember(chains=[(4,)])])
    sent = drafted(ensemble, make_job(session=session))
    assert ensemble.look_ahead([sent], FEW) == [AheadStep()]


def test_outcomes_beyond_the_models_context_are_not_foreseen() -> None:
    model = TableModel(LAWS, depth_limit=1)
    ensemble = Ensemble([SsmMember("ssm", model, POLICY)])
    sent = drafted(ensemble, make_job(budget=Budget(4, 3)))
    run_ahead(ensemble, sent)
    assert all(len(path) <= 1 for paths in model.foreseen for path in paths)


def test_nodes_of_other_members_beyond_the_models_context_are_not_foreseen() -> None:
    """A model with learned positions has none there: the forward would fail, and every session lose its cache."""
    model = TableModel(LAWS, depth_limit=1)
    ensemble = Ensemble([SsmMember("ssm", model, POLICY), ScriptedMember(chains=[(1, 2, 3)], prob=0.95)])
    sent = drafted(ensemble, make_job(budget=Budget(4, 3)))
    assert sent.tree.max_depth == 3
    run_ahead(ensemble, sent)
    assert model.foreseen
    assert all(len(path) <= 1 for paths in model.foreseen for path in paths)


def test_an_ensemble_without_ssms_has_nothing_to_do_ahead() -> None:
    ensemble = Ensemble([ScriptedMember()])
    assert ensemble.look_ahead([drafted(ensemble, make_job())], 2) == [AheadStep()]
    assert ensemble.num_forwards == 0


def test_every_ssm_grows_under_the_same_outcomes() -> None:
    first, second = TableModel(LAWS), TableModel(LAWS)
    ensemble = Ensemble([SsmMember("a", first, POLICY), SsmMember("b", second, POLICY)])
    sent = drafted(ensemble, make_job(budget=Budget(4, 3)))
    guesses = run_ahead(ensemble, sent)[-1].guesses
    assert guesses
    for model in (first, second):
        assert all(model.law_after(sent.job, guess, 8) is not None for guess in guesses)
