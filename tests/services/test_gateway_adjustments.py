"""Penalties and biases on their way from a client, by either face, to the verifier; a million stop at the door."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from specgrove.errors import InvalidInput
from specgrove.proto.v1 import gateway_pb2, gateway_pb2_grpc
from specgrove.rpc import open_channel
from specgrove.sampling.params import SamplingParams
from specgrove.text import Tokenizer
from specgrove.wire import sampling_from_proto
from specgrove_gateway.openai_http.logit_bias import read_logit_bias
from support.fake_verifier import FakeVerifier
from support.gateway import RunningGateway, running_gateway
from support.tiny_tokenizer import write_tiny_tokenizer

ASKED = {"repetition_penalty": 1.25, "presence_penalty": -0.5, "frequency_penalty": 2.0, "seed": 3}
SEEN = SamplingParams(**ASKED, logit_bias=((4, -100.0), (7, 0.5)))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def verifier(folder: Path) -> AsyncIterator[FakeVerifier]:
    tokenizer = Tokenizer.load(folder)
    fake = FakeVerifier(tokenizer, lambda prompt, seed: [*tokenizer.encode("Hello world"), 2])
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def gateway(folder: Path, verifier: FakeVerifier) -> AsyncIterator[RunningGateway]:
    async with running_gateway(folder, [verifier]) as gateway:
        yield gateway


async def test_they_reach_the_verifier_from_both_endpoints_and_from_grpc(
    gateway: RunningGateway, verifier: FakeVerifier
) -> None:
    for send in (gateway.chat, gateway.complete):
        answer = await send("Hello", **ASKED, logit_bias={"7": 0.5, "4": -100})
        assert answer.status_code == 200
    async with open_channel(f"127.0.0.1:{gateway.ports.grpc}") as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        asked = gateway_pb2.GenerateRequest(prompt="Hi", logit_bias={7: 0.5, 4: -100.0}, **ASKED)  # type: ignore[arg-type]
        assert [part async for part in stub.Generate(asked, timeout=10)]
    assert [sampling_from_proto(request.sampling) for request in verifier.requests] == [SEEN] * 3


async def test_the_openai_client_spells_them_so(gateway: RunningGateway, verifier: FakeVerifier) -> None:
    await gateway.openai.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Hi"}],
        presence_penalty=-0.5,
        frequency_penalty=2.0,
        logit_bias={"7": 0.5, "4": -100},
        seed=3,
        extra_body={"repetition_penalty": 1.25},
    )
    assert sampling_from_proto(verifier.requests[-1].sampling) == SEEN


async def test_what_asks_for_nothing_is_nothing(gateway: RunningGateway, verifier: FakeVerifier) -> None:
    fields = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": None, "logit_bias": {}}
    assert (await gateway.chat(seed=3, **fields)).status_code == 200
    assert sampling_from_proto(verifier.requests[-1].sampling) == SamplingParams(seed=3)


def test_a_million_entries_are_counted_and_not_read() -> None:
    biases = {str(number): "x" for number in range(10**6)}
    started = time.monotonic()
    with pytest.raises(InvalidInput, match="1000000 entries"):
        read_logit_bias(biases)
    assert time.monotonic() - started < 0.1
