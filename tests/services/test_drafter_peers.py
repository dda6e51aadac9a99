"""What verifiers may do to a drafter: say nonsense, refuse, go away, come back; and where it finds them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from specgrove.errors import VocabularyMismatch
from specgrove.proto.v1 import speculation_pb2 as pb
from specgrove.sampling.params import SamplingParams
from specgrove.session import Pod, PodRegistry, connect
from specgrove.telemetry import CollectorRegistry
from specgrove.wire import sampling_to_proto
from specgrove_drafter.config import DrafterConfig
from support.draft_streams import DraftVerifier, read_tree
from support.live_drafter import drafter_config, running_drafter
from support.redis_server import RedisServer
from support.tiny_models import VOCAB_SIZE, write_tiny_model
from support.waiting import until

PROMPT = [5, 9, 33, 7]
SAMPLING = sampling_to_proto(SamplingParams(temperature=0.0))
BUDGET = pb.DraftBudget(max_nodes=4, max_depth=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("ssm"))


@pytest.fixture
async def verifier() -> AsyncIterator[DraftVerifier]:
    fake = DraftVerifier()
    await fake.start()
    yield fake
    await fake.stop()


def make_config(folder: Path, verifiers: Sequence[str], **settings: Any) -> DrafterConfig:
    return drafter_config([folder], verifiers, **({"min_path_prob": 0.0, "prompt_lookup": False} | settings))


@pytest.mark.parametrize(
    "bad",
    [
        {"open": pb.Open(session_key=9, token_ids=[5, VOCAB_SIZE], budget=BUDGET)},
        {"open": pb.Open(session_key=9, budget=BUDGET)},
        {"open": pb.Open(session_key=9, token_ids=[5])},
        {"commit": pb.Commit(session_key=1, from_len=4, token_ids=[2**32 - 1])},
        {"commit": pb.Commit(session_key=77, from_len=2**32 - 1, token_ids=[1])},
        {"close": pb.Close(session_key=77)},
        {"welcome": pb.Welcome()},
        {},
    ],
    ids=[
        "id out of range",
        "no tokens",
        "no sampling",
        "bad commit",
        "unknown session",
        "unknown close",
        "welcome",
        "empty",
    ],
)
async def test_a_malformed_message_hurts_nobody_else(
    folder: Path, verifier: DraftVerifier, bad: dict[str, object]
) -> None:
    async with running_drafter(make_config(folder, [verifier.address])):
        stream = await verifier.stream()
        stream.open(1, PROMPT, stop_token_ids=())
        stream.open(2, PROMPT, stop_token_ids=())
        await stream.tree()
        await stream.tree()
        stream.send(**bad)
        tokens = [*PROMPT, 11]
        stream.commit(2, len(PROMPT), tokens[-1:])
        while (answer := await stream.answer()).tree.session_key != 2:
            assert answer.WhichOneof("message") == "decline"
        read_tree(answer.tree, tokens)


@pytest.mark.parametrize("widths", [[0], [1] * 65, [2**32 - 1]])
async def test_a_shape_that_no_tree_has_is_refused_before_anything_is_drafted(
    folder: Path, verifier: DraftVerifier, widths: list[int]
) -> None:
    registry = CollectorRegistry()
    async with running_drafter(make_config(folder, [verifier.address]), registry):
        stream = await verifier.stream()
        opening = pb.Open(session_key=9, token_ids=PROMPT, sampling=SAMPLING, budget=BUDGET, expansion=widths)
        stream.send(open=opening)
        assert (await stream.decline()).reason == pb.Decline.REASON_NOTHING_TO_PROPOSE
        assert registry.get_sample_value("specgrove:drafter_num_malformed_messages_total") == 1
        assert registry.get_sample_value("specgrove:drafter_batch_sessions_count") == 0


async def test_a_verifier_that_comes_back_is_used_within_two_seconds(folder: Path) -> None:
    before = DraftVerifier()
    await before.start()
    port = before.port
    async with running_drafter(make_config(folder, [before.address])):
        stream = await before.stream()
        stream.open(1, PROMPT)
        await stream.tree()
        await before.stop()
        await asyncio.sleep(1.5)
        after = DraftVerifier(port=port)
        await after.start()
        back_s = time.monotonic()
        stream = await after.stream()
        stream.open(1, PROMPT)
        await stream.tree()
        assert time.monotonic() - back_s < 2.0
    await after.stop()


async def test_a_stream_that_the_verifier_ends_is_dialled_again(folder: Path, verifier: DraftVerifier) -> None:
    async with running_drafter(make_config(folder, [verifier.address])) as drafter:
        stream = await verifier.stream()
        stream.open(1, PROMPT)
        await stream.tree()
        stream.end()
        await verifier.stream()
        assert drafter.inbox.num_mirrors() == 0


async def test_a_refusal_is_not_hammered(folder: Path, verifier: DraftVerifier) -> None:
    verifier.refusal = VocabularyMismatch("the drafter's vocabulary is another one")
    async with running_drafter(make_config(folder, [verifier.address])):
        await asyncio.sleep(1.0)
        assert verifier.num_hellos == 1


async def test_stopping_ends_the_stream_in_good_order(folder: Path, verifier: DraftVerifier) -> None:
    async with running_drafter(make_config(folder, [verifier.address])):
        stream = await verifier.stream()
        stream.open(1, PROMPT)
        await stream.tree()
    async with asyncio.timeout(2):
        await stream.is_ended.wait()


async def test_verifiers_are_found_in_redis_and_kept_while_it_is_away(
    folder: Path, verifier: DraftVerifier, redis_server: RedisServer
) -> None:
    redis = connect(redis_server.url)
    registry = PodRegistry(redis)
    config = make_config(folder, [], redis_url=redis_server.url)
    async with running_drafter(config, redis=redis) as drafter:
        await registry.announce(Pod("verifier", "v", "one", verifier.address))
        stream = await verifier.stream()
        [pod] = await registry.list_pods("drafter")
        assert (pod.pod_id, pod.attributes["members"]) == ("drafter-1", folder.name)
        redis_server.stop()
        await asyncio.sleep(1.5)
        stream.open(1, PROMPT)
        await stream.tree()
        stream.end()  # dialled again from the last known list
        await verifier.stream()
        await until(lambda: drafter.links.connected_addresses == {verifier.address})
        redis_server.start()
    await redis.aclose()
