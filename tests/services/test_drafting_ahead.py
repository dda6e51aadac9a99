"""Drafting ahead over real sockets: never another token, never another tree, and nothing left when sessions end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from specgrove.base_hash import EMPTY_HASH, extend_hash
from specgrove.runtime.loading import LoadedModel, load_model
from specgrove.sampling.noise import NoiseRows
from specgrove.sampling.params import SamplingParams
from specgrove.sampling.target_choice import choose_tokens
from specgrove.telemetry import CollectorRegistry
from specgrove.wire import tree_from_proto
from specgrove_drafter.drafter import Drafter
from specgrove_drafter.members.ssm import SsmMember
from support.draft_streams import DraftVerifier
from support.live_drafter import drafter_config, running_drafter
from support.tiny_models import own_logits, own_model, write_tiny_model
from support.tiny_verifier import request_message, running_verifier
from support.waiting import until

VOCAB = 96
PROMPT = [5, 9, 33, 7]
GUESSES = "specgrove:drafter_num_ahead_guesses_total"
HITS = "specgrove:drafter_num_ahead_hits_total"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("other"), seed=5)


@pytest.fixture(scope="module")
def target(folder: Path) -> LoadedModel:
    return load_model(folder, "float32")


@asynccontextmanager
async def running(
    ssms: Sequence[Path], address: str, registry: CollectorRegistry | None = None, **settings: Any
) -> AsyncIterator[Drafter]:
    always = {"kv_tokens": 4096, "max_ahead_share": 1.0, "min_ahead_prob": 0.0}  # something to do ahead
    async with running_drafter(drafter_config(ssms, [address], **(always | settings)), registry) as drafter:
        yield drafter


def cached_sessions(drafter: Drafter) -> int:
    members = [member for member in drafter.ensemble._members if isinstance(member, SsmMember)]
    return sum(member._model.num_cached_sessions for member in members)  # type: ignore[attr-defined]


async def replayed(folder: Path, params: SamplingParams, registry: CollectorRegistry, **settings: Any) -> list[object]:
    """Six steps of a target that is the SSM: the paths of each tree and the tokens that were committed."""
    model, noise, tokens, seen = own_model(folder), NoiseRows(params.seed, VOCAB), list(PROMPT), []
    verifier = DraftVerifier()
    await verifier.start()
    async with running([folder], verifier.address, registry, prompt_lookup=False, min_path_prob=0.05, **settings):
        stream = await verifier.stream()
        stream.open(1, tokens, sampling=params, stop_token_ids=())
        for _ in range(6):
            message = await stream.tree()
            assert message.base_hash == extend_hash(EMPTY_HASH, tokens)
            tree = tree_from_proto(message, root_token_id=tokens[-1], vocab_size=VOCAB, max_nodes=8, max_depth=4)
            base_len, path = len(tokens), ()
            while path in tree.paths():
                choice = choose_tokens(own_logits(model, tokens)[-1:], params, [len(tokens)], noise)[0]
                tokens.append(choice)
                path = (*path, choice)
            seen += [sorted(tree.paths()), path]
            if settings["ahead"] == "on":
                await asyncio.sleep(0.1)  # the verification, in which the drafter goes on
            stream.commit(1, base_len, tokens[base_len:])
    await verifier.stop()
    return seen


@pytest.mark.parametrize("temperature", [0.0, 0.3])
async def test_trees_are_the_same_with_and_without_drafting_ahead(folder: Path, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=77)
    registry = CollectorRegistry()
    ahead = await replayed(folder, params, registry, ahead="on")
    assert ahead == await replayed(folder, params, CollectorRegistry(), ahead="off")
    assert (registry.get_sample_value(GUESSES) or 0) > 0
    assert (registry.get_sample_value(HITS) or 0) > 0  # a target that is its SSM is foreseen at least once


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("is_draft_equal_to_target", [True, False])
async def test_tokens_are_those_of_plain_decoding(
    folder: Path, other_folder: Path, target: LoadedModel, temperature: float, is_draft_equal_to_target: bool
) -> None:
    answers: list[list[list[int]]] = []
    ssms = [folder] if is_draft_equal_to_target else [other_folder, folder]
    for ahead in (None, "off", "on", "auto"):
        async with running_verifier(target, max_draft_wait_ms=5_000.0) as verifier:

            async def generate(number: int) -> list[int]:
                request = request_message(
                    [*PROMPT, number + 10], 32, session_id=f"s{number}", temperature=temperature, seed=number
                )
                return (await verifier.generate(request)).token_ids

            if ahead is None:
                answers.append(await asyncio.gather(*map(generate, range(3))))
            else:
                registry = CollectorRegistry()
                async with running(ssms, verifier.address, registry, ahead=ahead, min_path_prob=0.05) as drafter:
                    await until(lambda: bool(drafter.links.connected_addresses))
                    answers.append(await asyncio.gather(*map(generate, range(3))))
                    await until(lambda: drafter.inbox.num_mirrors() == 0 and cached_sessions(drafter) == 0)
                assert verifier.sample("specgrove:spec_decode_num_draft_tokens_total") > 0
                if ahead == "on" and is_draft_equal_to_target:
                    assert registry.get_sample_value("specgrove:drafter_num_ahead_forwards_total")
            await verifier.assert_empty()
    assert answers == [answers[0]] * 4


async def test_a_storm_of_opens_commits_and_closes_leaves_nothing(folder: Path) -> None:
    verifier = DraftVerifier()
    await verifier.start()
    generator = random.Random(8)
    registry = CollectorRegistry()
    async with running([folder], verifier.address, registry, ahead="on", min_path_prob=0.05) as drafter:
        stream = await verifier.stream()
        lengths: dict[int, int] = {}
        for at in range(400):
            key = generator.randrange(12)
            match generator.randrange(4):
                case 0:
                    tokens = [generator.randrange(3, VOCAB) for _ in range(generator.randint(1, 12))]
                    lengths[key] = len(tokens)
                    stream.open(key, tokens, stop_token_ids=())
                case 1 | 2 if key in lengths:
                    tokens = [generator.randrange(3, VOCAB) for _ in range(generator.randint(1, 3))]
                    stream.commit(key, lengths[key], tokens, max_nodes=generator.choice([0, 2, 8]))
                    lengths[key] += len(tokens)
                case 3:
                    stream.close(key)
                    lengths.pop(key, None)
            if at % 20 == 0:
                await asyncio.sleep(0.02)
        stream.open(99, PROMPT, stop_token_ids=())
        await until(lambda: (registry.get_sample_value(GUESSES) or 0) > 0)  # and there is more to be done
        for key in (*lengths, 99):
            stream.close(key)
        await until(lambda: drafter.inbox.num_mirrors() == 0 and cached_sessions(drafter) == 0)
        assert registry.get_sample_value("specgrove:drafter_mirrors") == 0
    await verifier.stop()


async def test_a_verifier_that_dies_while_its_drafts_are_looked_ahead_of_leaves_nothing(folder: Path) -> None:
    verifier = DraftVerifier()
    await verifier.start()
    async with running([folder], verifier.address, ahead="on", min_path_prob=0.05) as drafter:
        stream = await verifier.stream()
        for key in range(6):
            stream.open(key, [*PROMPT, key + 10], stop_token_ids=())
        await stream.tree()
        await verifier.stop()
        await until(lambda: drafter.inbox.num_mirrors() == 0 and cached_sessions(drafter) == 0)
        assert drafter.engine.is_running
