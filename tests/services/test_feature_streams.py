"""Features through real sockets, from the target to an SSM: what a verifier sends and what a drafter makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specgrove.proto.v1 import speculation_pb2 as pb
from specgrove.runtime.loading import LoadedModel, load_model
from specgrove.sampling.params import SamplingParams
from specgrove.telemetry import CollectorRegistry
from specgrove.wire import sampling_to_proto
from support.draft_streams import DraftStream, DraftVerifier
from support.feature_maps import write_feature_maps
from support.live_drafter import drafter_config, running_drafter
from support.tiny_models import own_features, own_model, write_tiny_model
from support.tiny_verifier import HeldSession, Reply, drafting, request_message, running_verifier, tree_message
from support.waiting import until

PROMPT = [5, 6, 7]
MAX_TOKENS = 24
LAYERS = (3, 1)
NUM_VALUES = 3 * 32
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("target"), num_hidden_layers=4, seed=1)


@pytest.fixture(scope="module")
def target(target_folder: Path) -> LoadedModel:
    return load_model(target_folder, "float32")


@pytest.fixture(scope="module")
def ssm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("ssm"), seed=7)


@asynccontextmanager
async def drafter_for(folders: Sequence[Path], address: str, registry: CollectorRegistry, **settings: Any) -> Any:
    config = drafter_config(folders, [address], prompt_lookup=False, **settings)
    async with running_drafter(config, registry) as drafter:
        yield drafter


def recording(truth: Sequence[int], heard: list[tuple[list[int], bytes]]) -> Reply:
    """Right for two tokens, then wrong; notes the tokens of each base and its features."""

    def reply(session: HeldSession) -> pb.DrafterMessage | None:
        known = len(session.token_ids)
        if min(session.max_depth, session.max_nodes) < 3:
            return None
        heard.append((list(session.token_ids), session.features))
        return tree_message(session, [[*truth[known : known + 2], 3]])

    return reply


async def test_the_verifier_sends_the_states_of_a_plain_forward_over_the_committed_tokens(
    target: LoadedModel, target_folder: Path
) -> None:
    heard: list[tuple[list[int], bytes]] = []
    async with running_verifier(target) as verifier:
        plain = await verifier.generate(request_message(PROMPT, MAX_TOKENS, is_speculative=False))
        truth = PROMPT + plain.token_ids
        async with drafting(verifier, recording(truth, heard), feature_layers=LAYERS):
            answer = await verifier.generate(request_message(PROMPT, MAX_TOKENS))
    assert PROMPT + answer.token_ids == truth
    lengths = [len(tokens) for tokens, _ in heard]
    assert len(lengths) >= 6
    assert 3 in np.diff(lengths), "no commit brought several tokens"
    own = own_model(target_folder)
    for tokens, values in heard:
        ours = torch.from_numpy(np.frombuffer(values, "<f2").astype(np.float32))
        torch.testing.assert_close(ours, own_features(own, tokens, LAYERS), atol=2e-3, rtol=1e-3)


@pytest.fixture
async def fake_verifier() -> AsyncIterator[DraftVerifier]:
    fake = DraftVerifier()
    await fake.start()
    yield fake
    await fake.stop()


async def test_hello_asks_for_what_the_members_want_together(
    ssm_folder: Path, tmp_path: Path, fake_verifier: DraftVerifier
) -> None:
    write_feature_maps(ssm_folder, LAYERS)
    second, plain = write_tiny_model(tmp_path / "second"), write_tiny_model(tmp_path / "plain")
    write_feature_maps(second, (2, 3))
    async with drafter_for([ssm_folder, plain, second], fake_verifier.address, CollectorRegistry()):
        stream = await fake_verifier.stream()
    assert list(stream.hello.feature_layers) == [1, 2, 3]


def best_child(folder: Path, maps: dict[str, torch.Tensor], tokens: Sequence[int], values: bytes | None) -> int:
    """The first choice below the root; the features lie as the drafter asked for them, layer 1 before 3."""
    own: Any = own_model(folder)
    with torch.inference_mode():
        states = own.model(input_ids=torch.tensor([list(tokens)])).last_hidden_state[0, -1]
        if values is not None:
            layer_1, layer_3, final = torch.from_numpy(np.frombuffer(values, "<f2").astype(np.float32)).view(3, 32)
            features = torch.cat([layer_3, layer_1, final])
            states = states @ maps["state_maps"][0] + features @ maps["feature_maps"][0]
        return int(own.lm_head(states).argmax())


async def first_choice(stream: DraftStream) -> int:
    return (await stream.tree()).token_ids[0]


async def test_a_drafter_uses_the_features_of_opens_and_commits_and_ignores_those_of_the_wrong_length(
    ssm_folder: Path, fake_verifier: DraftVerifier
) -> None:
    maps, registry = write_feature_maps(ssm_folder, LAYERS), CollectorRegistry()
    random = np.random.default_rng(3)
    good = [random.standard_normal(NUM_VALUES).astype("<f2").tobytes() for _ in range(4)]
    budget = pb.DraftBudget(max_nodes=4, max_depth=1)
    tokens, sampling = [*PROMPT], sampling_to_proto(GREEDY)
    async with drafter_for([ssm_folder], fake_verifier.address, registry, min_path_prob=0.0):
        stream = await fake_verifier.stream()
        stream.send(open=pb.Open(session_key=1, token_ids=tokens, sampling=sampling, budget=budget, features=good[0]))
        choices = [await first_choice(stream)]
        expected = [best_child(ssm_folder, maps, tokens, good[0])]
        for values in good[1:]:
            stream.send(
                commit=pb.Commit(session_key=1, from_len=len(tokens), token_ids=[40], budget=budget, features=values)
            )
            tokens.append(40)
            choices.append(await first_choice(stream))
            expected.append(best_child(ssm_folder, maps, tokens, values))
        assert choices == expected
        for key, values in enumerate((good[0][:-2], good[0] + b"\0\0", b"\0"), start=2):
            stream.send(
                open=pb.Open(session_key=key, token_ids=PROMPT, sampling=sampling, budget=budget, features=values)
            )
            assert await first_choice(stream) == best_child(ssm_folder, maps, PROMPT, None)
    sample = registry.get_sample_value
    assert sample("specgrove:drafter_num_refused_features_total") == 3
    assert sample("specgrove:drafter_num_feature_fed_rows_total", {"member": ssm_folder.name}) == 4


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": 3}])
async def test_a_feature_fed_drafter_changes_no_token(
    target: LoadedModel, ssm_folder: Path, sampling: dict[str, Any]
) -> None:
    write_feature_maps(ssm_folder, LAYERS)
    registry = CollectorRegistry()
    async with running_verifier(target) as verifier:
        requests = [([5 + n, 6, 7], f"s{n}") for n in range(3)]
        truths = [
            (await verifier.generate(request_message(prompt, 30, session_id=name, is_speculative=False, **sampling)))
            for prompt, name in requests
        ]
        async with drafter_for([ssm_folder], verifier.address, registry, min_path_prob=0.0):
            await until(lambda: verifier.engine.num_drafters == 1)
            answers = await asyncio.gather(
                *(
                    verifier.generate(request_message(prompt, 30, session_id=name, **sampling))
                    for prompt, name in requests
                )
            )
        assert [answer.token_ids for answer in answers] == [truth.token_ids for truth in truths]
        assert verifier.sample("specgrove:spec_decode_num_drafts_total") > 20
        await verifier.assert_empty()
    fed = registry.get_sample_value("specgrove:drafter_num_feature_fed_rows_total", {"member": ssm_folder.name})
    assert fed is not None
    assert fed > 20
