"""What an SSM computes ahead of a base: found again when the base comes, the same law, always within bounds."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specgrove.base_hash import EMPTY_HASH, extend_hash
from specgrove.runtime.loading import load_model
from specgrove.sampling.params import SamplingParams
from specgrove.sampling.rules import Rule
from specgrove_drafter.jobs import Budget, DraftJob, SessionRef
from specgrove_drafter.members.draft_model import ROOT_ROW, NodeRow
from specgrove_drafter.members.law import ERROR_SCALE
from specgrove_drafter.members.runtime_model import MAX_ROWS_IN_FLIGHT, RuntimeDraftModel
from specgrove_drafter.members.ssm import SsmMember
from specgrove_drafter.trees.growth import BestFirst, BestFirstPolicy, Children
from support.drafter_fakes import GREEDY, ask
from support.tiny_models import own_logits, own_model, write_tiny_model

VOCAB = 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("ssm"), vocab_size=VOCAB)


@pytest.fixture(scope="module")
def plain(folder: Path) -> torch.nn.Module:
    return own_model(folder)


def make_model(folder: Path, kv_tokens: int = 4096) -> RuntimeDraftModel:
    return RuntimeDraftModel(
        load_model(folder, weights="float32"), target_vocab_size=VOCAB, max_cached_tokens=kv_tokens
    )


def job_for(tokens: list[int], key: int = 1, budget: Budget = Budget(8, 4)) -> DraftJob:
    """A job over the list itself, so that it can grow as a mirror's does."""
    base_hash = extend_hash(EMPTY_HASH, tokens)
    return DraftJob(SessionRef(1, key), tokens, len(tokens), base_hash, len(tokens), GREEDY, frozenset(), budget, 0.0)


def assert_is_law(children: Children | None, plain: torch.nn.Module, tokens: list[int]) -> None:
    assert children is not None
    law = (own_logits(plain, tokens)[-1] / ERROR_SCALE).log_softmax(-1)
    torch.testing.assert_close(torch.tensor(children.log_probs), law[list(children.token_ids)], atol=2e-3, rtol=1e-3)
    assert float(law.max()) == pytest.approx(children.log_probs[0], abs=2e-3)


def test_a_foreseen_base_costs_no_forward_and_gets_its_law(folder: Path, plain: torch.nn.Module) -> None:
    model = make_model(folder)
    tokens = [5, 9, 33, 7]
    job = job_for(tokens)
    model.start([job], 8)
    model.extend([NodeRow(job, ROOT_ROW, 11, 1)], 8)
    model.foresee([(job, (11, 20))], 8)  # 11 accepted, then 20
    model.foresee([(job, (11, 20, 21))], 8)  # the first node of the tree under that
    num_forwards = model.num_forwards
    tokens += [11, 20]
    job = job_for(tokens)
    [root] = model.start([job], 8)
    [below] = model.extend([NodeRow(job, ROOT_ROW, 21, 1)], 8)
    assert model.num_forwards == num_forwards
    assert_is_law(root, plain, tokens)
    assert_is_law(below.children, plain, [*tokens, 21])
    [deeper] = model.extend([NodeRow(job, below.row, 22, 2)], 8)  # from here on it has to be run
    assert model.num_forwards == num_forwards + 1
    assert_is_law(deeper.children, plain, [*tokens, 21, 22])


def test_a_wrong_guess_keeps_the_rows_that_came_true(folder: Path, plain: torch.nn.Module) -> None:
    rows: list[int] = []
    model = RuntimeDraftModel(
        load_model(folder, weights="float32"), target_vocab_size=VOCAB, max_cached_tokens=512, on_forward=rows.append
    )
    tokens = [5, 9, 33, 7]
    job = job_for(tokens)
    model.start([job], 8)
    model.foresee([(job, (11, 12, 13)), (job, (14, 15))], 8)
    tokens += [11, 12, 99]
    [root] = model.start([job_for(tokens)], 8)
    assert_is_law(root, plain, tokens)
    assert rows == [4, 5, 1]  # the prompt; both guesses in one forward; the target's own token alone


def test_guesses_that_share_a_path_run_it_once(folder: Path, plain: torch.nn.Module) -> None:
    model = make_model(folder)
    tokens = [5, 9, 33, 7]
    job = job_for(tokens)
    model.start([job], 8)
    laws = model.foresee([(job, (11, 12, 13)), (job, (11, 12, 14)), (job, (11,))], 8)
    for law, path in zip(laws, ([11, 12, 13], [11, 12, 14], [11]), strict=True):
        assert_is_law(law, plain, [*tokens, *path])
    assert model.law_after(job, (11, 12, 14), 8) == laws[1]
    assert model.law_after(job, (11, 12), 8) is None  # run on the way, its law was not asked for
    assert model._sessions[job.session].seq.num_in_flight == 3 + 1 + 1


def test_hits_in_a_row_stay_within_the_bound_of_rows(folder: Path, plain: torch.nn.Module) -> None:
    model = make_model(folder)
    tokens = [5, 9, 33, 7]
    generator = random.Random(3)
    most = 0
    for _ in range(40):
        job = job_for(tokens)
        [root] = model.start([job], 8)
        assert_is_law(root, plain, tokens)
        guesses = [(job, (generator.randrange(VOCAB), generator.randrange(VOCAB))) for _ in range(6)]
        model.foresee(guesses, 8)
        most = max(most, model._sessions[job.session].seq.num_in_flight)
        tokens += guesses[0][1]
    assert most <= MAX_ROWS_IN_FLIGHT


def test_a_guess_takes_no_room_from_another_session(folder: Path) -> None:
    model = make_model(folder, kv_tokens=48)
    one, other = job_for([7] * 16, 1), job_for([8] * 16, 2)
    model.start([other], 4)
    model.start([one], 4)
    assert model.foresee([(one, tuple(range(20)))], 4) == [None]
    assert model.num_cached_sessions == 2


def test_nothing_is_foreseen_for_a_session_that_is_not_read(folder: Path) -> None:
    model = make_model(folder)
    assert model.foresee([(job_for([5, 9]), (11,))], 4) == [None]
    assert model.law_after(job_for([5, 9]), (), 4) is None
    assert model.num_forwards == 0


def test_children_that_are_drawn_are_not_kept_for_later(folder: Path) -> None:
    model = make_model(folder)
    job = replace(job_for([5, 9, 33]), rule=Rule.MSS, sampling=SamplingParams(temperature=1.0, seed=1))
    model.start([job], 8)
    assert model.law_after(job, (), 8) is None


def test_a_law_of_fewer_children_than_wanted_is_computed_again(folder: Path) -> None:
    model = make_model(folder)
    job = job_for([5, 9, 33])
    model.start([job], 4)
    assert model.law_after(job, (), 4) is not None
    assert model.law_after(job, (), 8) is None


def test_random_lives_with_foresight_never_change_a_law(folder: Path, plain: torch.nn.Module) -> None:
    generator = random.Random(11)
    model = make_model(folder, kv_tokens=160)  # room for two or three of four sessions
    sessions = {key: [generator.randrange(20) for _ in range(generator.randint(1, 20))] for key in range(4)}
    num_recalled = 0
    for _ in range(150):
        key = generator.randrange(4)
        tokens = sessions[key]
        job, before = job_for(tokens, key), model.num_forwards
        [root] = model.start([job], 6)
        num_recalled += model.num_forwards == before
        if root is None or not root.token_ids:
            continue
        assert_is_law(root, plain, tokens)
        guesses = [
            (job, tuple(generator.randrange(20) for _ in range(generator.randint(1, 3))))
            for _ in range(generator.randint(0, 3))
        ]
        for law, (_, path) in zip(model.foresee(guesses, 6) if guesses else [], guesses, strict=True):
            if law is not None:
                assert_is_law(law, plain, [*tokens, *path])
        if generator.random() < 0.5:
            [node] = model.extend([NodeRow(job, ROOT_ROW, generator.randrange(20), 1)], 6)
            assert node.children.token_ids
        if guesses and generator.random() < 0.7:
            tokens += generator.choice(guesses)[1]
        tokens += [generator.randrange(20)] * (generator.random() < 0.4)
        if generator.random() < 0.1 or len(tokens) > 50:
            sessions[key] = tokens[: generator.randint(1, 15)]  # opened anew
        if generator.random() < 0.05:
            model.release(job.session)
    assert num_recalled > 10
    for key in range(4):
        model.release(SessionRef(1, key))
    assert model._cache.usage == 0.0


def test_a_wider_tree_in_the_same_round_leaves_what_was_foreseen_in_use(folder: Path) -> None:
    """One client's shape must not cost the others their work ahead."""
    rows: list[int] = []
    loaded = load_model(folder, weights="float32")
    model = RuntimeDraftModel(loaded, target_vocab_size=VOCAB, max_cached_tokens=512, on_forward=rows.append)
    policy = BestFirstPolicy(BestFirst(num_children=8, min_path_prob=0.0))
    member = SsmMember("ssm", model, policy)
    budget, tokens = Budget(4, 2), [5, 9, 33, 7]
    job = job_for(tokens, budget=budget)
    ask(member, [job])
    [law] = model.foresee([(job, (11,))], 8)
    assert law is not None
    model.foresee([(job, (11, token_id)) for token_id in law.token_ids[:4]], 8)
    tokens.append(11)
    wide = replace(job_for([6, 7, 8], key=2, budget=budget), expansion=(64,))
    rows.clear()
    ask(member, [job_for(tokens, budget=budget), wide])
    assert rows == [3]  # the other session's prompt, and nothing else
