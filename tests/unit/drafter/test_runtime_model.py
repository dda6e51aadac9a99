"""An SSM over the runtime: whatever was cached, kept or evicted, the law is that of the plain model."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specgrove.base_hash import EMPTY_HASH, extend_hash
from specgrove.runtime.loading import load_model
from specgrove_drafter.jobs import Budget, DraftJob, SessionRef
from specgrove_drafter.members.draft_model import ROOT_ROW, NodeRow
from specgrove_drafter.members.law import ERROR_SCALE
from specgrove_drafter.members.runtime_model import RuntimeDraftModel
from specgrove_drafter.members.ssm import SsmMember
from specgrove_drafter.trees.growth import BestFirst, BestFirstPolicy, Children
from support.drafter_fakes import GREEDY, ask, make_job
from support.tiny_models import own_logits, own_model, write_tiny_model

VOCAB = 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("ssm"), vocab_size=VOCAB)


@pytest.fixture(scope="module")
def plain(folder: Path) -> torch.nn.Module:
    return own_model(folder)


def make_model(folder: Path, *, kv_tokens: int = 4096, max_catch_up_rows: int = 512) -> RuntimeDraftModel:
    return RuntimeDraftModel(
        load_model(folder, weights="float32"),
        target_vocab_size=VOCAB,
        max_cached_tokens=kv_tokens,
        max_catch_up_rows=max_catch_up_rows,
    )


def expected(plain: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    return (own_logits(plain, tokens)[-1] / ERROR_SCALE).log_softmax(-1).clone()


def assert_is_law(children: Children | None, plain: torch.nn.Module, tokens: list[int]) -> None:
    assert children is not None
    law = expected(plain, tokens)
    torch.testing.assert_close(torch.tensor(children.log_probs), law[list(children.token_ids)], atol=2e-3, rtol=1e-3)
    assert float(law.max()) == pytest.approx(children.log_probs[0], abs=2e-3)


def job_for(tokens: list[int], key: int = 1, budget: Budget = Budget(8, 4)) -> DraftJob:
    """A job over the list itself, so that it can grow as a mirror's does."""
    return DraftJob(
        SessionRef(1, key),
        tokens,
        len(tokens),
        extend_hash(EMPTY_HASH, tokens),
        len(tokens),
        GREEDY,
        frozenset(),
        budget,
        0.0,
    )


def test_laws_at_the_root_and_below_nodes(folder: Path, plain: torch.nn.Module) -> None:
    model = make_model(folder)
    tokens = [5, 9, 33, 7]
    job = job_for(tokens)
    [root] = model.start([job], 8)
    assert_is_law(root, plain, tokens)
    first = model.extend([NodeRow(job, ROOT_ROW, 11, 1), NodeRow(job, ROOT_ROW, 12, 1)], 8)
    assert_is_law(first[0].children, plain, [*tokens, 11])
    assert_is_law(first[1].children, plain, [*tokens, 12])
    second = model.extend([NodeRow(job, first[1].row, 20, 2), NodeRow(job, first[0].row, 21, 2)], 8)
    assert_is_law(second[0].children, plain, [*tokens, 12, 20])
    assert_is_law(second[1].children, plain, [*tokens, 11, 21])


def test_an_accepted_path_is_not_run_again(folder: Path, plain: torch.nn.Module) -> None:
    rows: list[int] = []
    model = RuntimeDraftModel(
        load_model(folder, weights="float32"),
        target_vocab_size=VOCAB,
        max_cached_tokens=512,
        on_forward=rows.append,
    )
    tokens = [5, 9, 33, 7]
    job = job_for(tokens)
    model.start([job], 8)
    [first, _] = model.extend([NodeRow(job, ROOT_ROW, 11, 1), NodeRow(job, ROOT_ROW, 12, 1)], 8)
    model.extend([NodeRow(job, first.row, 20, 2)], 8)
    tokens += [11, 20, 99]
    [root] = model.start([job_for(tokens)], 8)
    assert_is_law(root, plain, tokens)
    assert rows == [4, 2, 1, 1]


def test_random_lives_of_sessions_never_change_a_law(folder: Path, plain: torch.nn.Module) -> None:
    generator = random.Random(5)
    # Room for about two of three sessions: eviction happens all the time.
    model = make_model(folder, kv_tokens=96, max_catch_up_rows=24)
    sessions = {key: [generator.randrange(VOCAB) for _ in range(generator.randint(1, 30))] for key in range(3)}
    for _ in range(40):
        jobs = [job_for(sessions[key], key) for key in generator.sample(sorted(sessions), generator.randint(1, 2))]
        roots = model.start(jobs, 6)
        paths: dict[int, list[tuple[int, list[int]]]] = {}
        for job, root in zip(jobs, roots, strict=True):
            if root is not None and root.token_ids:
                assert_is_law(root, plain, list(job.token_ids))
                paths[job.session.session_key] = [(ROOT_ROW, [])]
        for _ in range(generator.randint(0, 3)):
            nodes, whole = [], []
            for job in jobs:
                for token_id in generator.sample(range(VOCAB), generator.randint(0, 2)):
                    if job.session.session_key in paths:
                        row, path = generator.choice(paths[job.session.session_key])
                        nodes.append(NodeRow(job, row, token_id, len(path) + 1))
                        whole.append((job, [*path, token_id]))
            for expanded, (job, path) in zip(model.extend(nodes, 6) if nodes else [], whole, strict=True):
                if expanded.children.token_ids:
                    assert_is_law(expanded.children, plain, [*job.token_ids, *path])
                    paths[job.session.session_key].append((expanded.row, path))
        for job in jobs:
            key = job.session.session_key
            _, accepted = generator.choice(paths.get(key, [(ROOT_ROW, [])]))
            sessions[key] += [*accepted[: generator.randint(0, len(accepted))], generator.randrange(VOCAB)]
            if generator.random() < 0.1 or len(sessions[key]) > 60:  # opened anew, or over
                sessions[key] = sessions[key][: generator.randint(1, 20)]
            if generator.random() < 0.05:
                model.release(job.session)


def test_a_long_context_is_read_in_pieces_while_others_draft(folder: Path, plain: torch.nn.Module) -> None:
    model = make_model(folder, max_catch_up_rows=16)
    long, short = list(range(3, 43)), [4, 5, 6]
    jobs = [job_for(long, 1), job_for(short, 2)]
    first = model.start(jobs, 4)
    assert first[0] is None
    assert_is_law(first[1], plain, short)
    while (law := model.start(jobs[:1], 4)[0]) is None:
        pass
    assert_is_law(law, plain, long)


def test_a_base_beyond_the_context_gets_no_children(folder: Path) -> None:
    model = make_model(folder)
    job = job_for([7] * 256)
    assert model.max_depth(job) == 0
    assert model.start([job], 4) == [Children()]
    assert model.max_depth(job_for([7] * 250)) == 6


def test_a_session_too_large_for_the_cache_is_not_drafted_and_hurts_nobody(
    folder: Path, plain: torch.nn.Module
) -> None:
    model = make_model(folder, kv_tokens=32)
    large, small = job_for([7] * 60, 1), job_for([5, 6, 7], 2)
    roots = model.start([large, small], 4)
    assert roots[0] == Children()
    assert_is_law(roots[1], plain, [5, 6, 7])


def test_ids_without_an_embedding_do_not_stop_the_engine(folder: Path) -> None:
    assert make_model(folder).start([job_for([5, VOCAB + 10, 6])], 4)[0]


def test_a_release_gives_every_block_back(folder: Path) -> None:
    model = make_model(folder, kv_tokens=64)
    for key in range(20):
        model.start([job_for([5, 6, 7, 8] * 8, key)], 4)
        model.release(SessionRef(1, key))
    assert model.num_cached_sessions == 0
    assert model._cache.usage == 0.0


def test_a_trimmed_vocabulary_is_mapped_both_ways(tmp_path: Path) -> None:
    other_id = 50
    targets = torch.arange(0, 400, 8)  # draft id i is target token 8 i
    folder = write_tiny_model(tmp_path / "trimmed", vocab_size=51, seed=3, draft_vocab_other_id=other_id)
    offsets = torch.cat([targets, torch.tensor([other_id])]) - torch.arange(51)
    save_file({"d2t": offsets}, folder / "draft_vocab.safetensors")
    model = RuntimeDraftModel(
        load_model(folder, weights="float32", target_vocab_size=400), target_vocab_size=400, max_cached_tokens=128
    )
    [root] = model.start([job_for([16, 24, 17])], 8)  # 17 is outside and embeds as the other token
    plain = own_model(folder)
    law = expected(plain, [2, 3, other_id])
    law[other_id] = float("-inf")
    assert root is not None
    assert list(root.token_ids) == [8 * draft_id for draft_id in law.topk(8).indices.tolist()]


def test_a_whole_member_drafts_greedily_what_the_model_would_say(folder: Path, plain: torch.nn.Module) -> None:
    member = SsmMember("ssm", make_model(folder), BestFirstPolicy(BestFirst(min_path_prob=0.0)))
    job = make_job([5, 9, 33, 7], budget=Budget(12, 4))
    [draft] = ask(member, [job])
    said = list(job.token_ids)
    for _ in range(2):
        said.append(int(expected(plain, said).argmax()))
    first = draft.proposal.token_ids.index(said[4])
    assert draft.proposal.parents[first] == -1
    below = [
        token for token, parent in zip(draft.proposal.token_ids, draft.proposal.parents, strict=True) if parent == first
    ]
    assert below[0] == said[5]
