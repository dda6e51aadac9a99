"""A whole drafter in this process against verifiers on real sockets, with a tiny random model as its SSM."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from specgrove.proto.v1 import speculation_pb2 as pb
from specgrove.sampling.noise import NoiseRows
from specgrove.sampling.params import SamplingParams
from specgrove.sampling.target_choice import choose_tokens
from specgrove.telemetry import CollectorRegistry
from specgrove.text import Tokenizer
from specgrove_drafter.config import DrafterConfig
from support.draft_streams import DraftStream, DraftVerifier, read_tree
from support.live_drafter import drafter_config, running_drafter
from support.tiny_models import own_logits, own_model, write_tiny_model
from support.waiting import until

PROMPT = [5, 9, 33, 7]
VOCAB = 96


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("ssm"))


def make_config(folder: Path, verifiers: Sequence[str], **settings: Any) -> DrafterConfig:
    return drafter_config([folder], verifiers, **({"min_path_prob": 0.0, "prompt_lookup": False} | settings))


@pytest.fixture
async def verifier() -> AsyncIterator[DraftVerifier]:
    fake = DraftVerifier()
    await fake.start()
    yield fake
    await fake.stop()


def greedy_path(folder: Path, tokens: Sequence[int], length: int) -> tuple[int, ...]:
    model, said = own_model(folder), list(tokens)
    for _ in range(length):
        said.append(int(own_logits(model, said)[-1].argmax()))
    return tuple(said[len(tokens) :])


async def test_hello_names_the_drafter_and_its_vocabulary(folder: Path, verifier: DraftVerifier) -> None:
    config = make_config(folder, [verifier.address], prompt_lookup=True, max_sessions=17)
    async with running_drafter(config):
        stream = await verifier.stream()
    assert stream.hello.protocol_version == 1
    assert stream.hello.drafter_id == "drafter-1"
    assert stream.hello.vocab_hash == Tokenizer.load(folder).vocab_hash
    assert list(stream.hello.models) == [folder.name, "prompt_lookup"]
    assert stream.hello.max_sessions == 17


async def test_trees_hold_what_the_model_would_say_and_follow_the_commits(
    folder: Path, verifier: DraftVerifier
) -> None:
    async with running_drafter(make_config(folder, [verifier.address], expansion="2,2")):
        stream = await verifier.stream()
        stream.open(1, PROMPT, stop_token_ids=())
        tree = read_tree(await stream.tree(), PROMPT)
        said = greedy_path(folder, PROMPT, 2)
        assert said in tree.paths()
        tokens = [*PROMPT, *said, 50]
        stream.commit(1, len(PROMPT), tokens[len(PROMPT) :])
        tree = read_tree(await stream.tree(), tokens)
        assert greedy_path(folder, tokens, 2) in tree.paths()


@pytest.mark.parametrize("temperature", [0.8, 1.0])
async def test_with_draft_equal_to_target_sampling_drafts_are_accepted(
    folder: Path, verifier: DraftVerifier, temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, seed=1234)
    model, noise = own_model(folder), NoiseRows(params.seed, VOCAB)
    tokens = list(PROMPT)
    num_accepted = 0
    async with running_drafter(make_config(folder, [verifier.address], expansion="1,1,1,1")):
        stream = await verifier.stream()
        stream.open(1, tokens, sampling=params, stop_token_ids=())
        for _ in range(6):
            tree = read_tree(await stream.tree(), tokens)
            base, path = list(tokens), ()
            while True:
                choice = choose_tokens(own_logits(model, tokens)[-1:], params, [len(tokens)], noise)[0]
                tokens.append(choice)
                path = (*path, choice)
                if path not in tree.paths():
                    break
                num_accepted += 1
            stream.commit(1, len(base), tokens[len(base) :])
    assert num_accepted == 6 * 4  # every tree to its full depth


async def test_an_expansion_config_shapes_the_tree(folder: Path, verifier: DraftVerifier) -> None:
    async with running_drafter(make_config(folder, [verifier.address], expansion="2,1,2")):
        stream = await verifier.stream()
        stream.open(1, PROMPT, stop_token_ids=())
        tree = read_tree(await stream.tree(), PROMPT)
    assert [tree.depths.count(depth) for depth in (1, 2, 3)] == [2, 2, 4]


async def test_sessions_are_drafted_together(folder: Path, verifier: DraftVerifier) -> None:
    registry = CollectorRegistry()
    async with running_drafter(make_config(folder, [verifier.address]), registry):
        stream = await verifier.stream()
        for key in range(8):
            stream.open(key, [*PROMPT, key + 10], stop_token_ids=())
        trees = {tree.session_key: tree for tree in [await stream.tree() for _ in range(8)]}
        for key, tree in trees.items():
            read_tree(tree, [*PROMPT, key + 10])
    forwards = registry.get_sample_value("specgrove:drafter_num_forwards_total", {"member": folder.name})
    assert sorted(trees) == list(range(8))
    assert forwards is not None
    assert forwards < 8 * 4


async def test_two_verifiers_may_use_the_same_session_key(folder: Path) -> None:
    first, second = DraftVerifier(verifier_id="a"), DraftVerifier(verifier_id="b")
    await first.start()
    await second.start()
    async with running_drafter(make_config(folder, [first.address, second.address])):
        for verifier, tokens in ((first, PROMPT), (second, [8, 8, 8])):
            stream = await verifier.stream()
            stream.open(1, tokens, stop_token_ids=())
            read_tree(await stream.tree(), tokens)
    await first.stop()
    await second.stop()


async def test_a_lost_place_is_said_and_an_open_mends_it(folder: Path, verifier: DraftVerifier) -> None:
    async with running_drafter(make_config(folder, [verifier.address])):
        stream = await verifier.stream()
        stream.open(1, PROMPT, stop_token_ids=())
        await stream.tree()
        stream.commit(1, len(PROMPT) + 3, [9])
        decline = await stream.decline()
        assert decline.reason == pb.Decline.REASON_LOST_PLACE
        tokens = [*PROMPT, 1, 3, 4, 9]
        stream.open(1, tokens, stop_token_ids=())
        read_tree(await stream.tree(), tokens)


async def test_a_zero_budget_is_answered_with_silence(folder: Path, verifier: DraftVerifier) -> None:
    async with running_drafter(make_config(folder, [verifier.address])):
        stream = await verifier.stream()
        stream.open(1, PROMPT, max_nodes=0)
        stream.open(2, PROMPT, max_nodes=4)
        assert (await stream.tree()).session_key == 2
        assert stream.incoming.empty()


async def test_capacity_is_said(folder: Path, verifier: DraftVerifier) -> None:
    async with running_drafter(make_config(folder, [verifier.address], max_sessions=1)):
        stream = await verifier.stream()
        stream.open(1, PROMPT)
        await stream.tree()
        stream.open(2, PROMPT)
        assert (await stream.decline()).reason == pb.Decline.REASON_NO_CAPACITY
        stream.close(1)
        stream.open(2, PROMPT)
        await stream.tree()


async def test_metrics_count_what_became_of_the_drafts(folder: Path, verifier: DraftVerifier) -> None:
    registry = CollectorRegistry()
    async with running_drafter(make_config(folder, [verifier.address]), registry):
        stream = await verifier.stream()
        stream.open(1, PROMPT, stop_token_ids=())
        tree = read_tree(await stream.tree(), PROMPT)
        path = next(path for path in sorted(tree.paths(), key=len, reverse=True))
        stream.commit(1, len(PROMPT), [*path, 5])
        await stream.tree()
        labels = {"member": folder.name, "position": str(len(path) - 1)}
        assert registry.get_sample_value("specgrove:drafter_num_accepted_tokens_total", labels) == 1
        assert registry.get_sample_value("specgrove:drafter_mirrors") == 1
        assert registry.get_sample_value("specgrove:drafter_connections") == 1
        await until(lambda: registry.get_sample_value("specgrove:drafter_num_drafts_total") == 2)


async def test_a_flood_of_commits_is_answered_for_the_newest_base(folder: Path, verifier: DraftVerifier) -> None:
    async with running_drafter(make_config(folder, [verifier.address])):
        stream: DraftStream = await verifier.stream()
        tokens = list(PROMPT)
        stream.open(1, tokens, stop_token_ids=())
        for step in range(100):
            stream.commit(1, len(tokens), [step % VOCAB])
            tokens.append(step % VOCAB)
        while (tree := await stream.tree()).base_len != len(tokens):
            pass
        read_tree(tree, tokens)
        assert stream.incoming.empty()
