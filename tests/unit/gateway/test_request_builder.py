"""One builder checks requests of both faces; the faces' own tests cover the refusals."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from specgrove.errors import ContextTooLong, InvalidInput, PeerUnavailable
from specgrove.outcome import SpeculationStats
from specgrove.text import ChatMessage, Tokenizer
from specgrove_gateway.config import GatewayConfig
from specgrove_gateway.generation import ChatPrompt, ClientRequest, TextPrompt, TokenPrompt
from specgrove_gateway.openai_http.answers import speculation_figures
from specgrove_gateway.request_builder import ModelLimits, RequestBuilder
from support.tiny_tokenizer import write_tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_tiny_tokenizer(tmp_path_factory.mktemp("model")))


def builder_of(tokenizer: Tokenizer, max_context_len: int = 100_000) -> RequestBuilder:
    limits = ModelLimits(max_context_len, tokenizer.vocab_size)
    return RequestBuilder(tokenizer, "tiny", lambda: limits)


async def test_a_prompt_may_fill_the_context_but_for_one_token(tokenizer: Tokenizer) -> None:
    builder = builder_of(tokenizer, max_context_len=10)
    request = await builder.build(ClientRequest(TokenPrompt((5,) * 9), "prompt"))
    assert request.stop.max_tokens == 1
    with pytest.raises(ContextTooLong) as raised:
        await builder.build(ClientRequest(TokenPrompt((5,) * 10), "prompt"))
    assert raised.value.field == "prompt"


async def test_a_long_prompt_is_tokenised_off_the_loop(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    encode = Tokenizer.encode

    def recording(self: Tokenizer, text: str, **options: bool) -> list[int]:
        threads.append(threading.get_ident())
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "encode", recording)
    builder = builder_of(tokenizer)
    await builder.build(ClientRequest(TextPrompt("Hello"), "prompt"))
    await builder.build(ClientRequest(TextPrompt("Hello world, this is a small text. " * 400), "prompt"))
    assert threads[0] == threading.get_ident()
    assert threads[1] != threading.get_ident()


async def test_many_tiny_messages_are_templated_off_the_loop(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def recording(self: Tokenizer, messages: Sequence[ChatMessage], **options: bool) -> list[int]:
        threads.append(threading.get_ident())
        return [5]

    monkeypatch.setattr(Tokenizer, "apply_chat_template", recording)
    await builder_of(tokenizer).build(ClientRequest(ChatPrompt((ChatMessage("user", "a"),) * 1000), "messages"))
    assert threads != [threading.get_ident()]


async def test_a_wrong_seed_is_refused_before_any_verifier_is_needed(tokenizer: Tokenizer) -> None:
    def no_limits() -> ModelLimits:
        raise PeerUnavailable("nobody")

    builder = RequestBuilder(tokenizer, "tiny", no_limits)
    with pytest.raises(InvalidInput):
        await builder.build(ClientRequest(TextPrompt("Hi"), "prompt", seed=-1))
    with pytest.raises(PeerUnavailable):
        await builder.build(ClientRequest(TextPrompt("Hi"), "prompt"))
    assert builder.served_model().limits is None


def test_the_histogram_counts_every_step_once() -> None:
    stats = SpeculationStats(num_steps=10, num_committed_tokens=19, accepted_per_pos=[6, 3])
    figures = speculation_figures(stats)
    assert figures["acceptance_histogram"] == [4, 3, 3]
    assert figures["mean_acceptance_length"] == 1.9
    assert figures["draft_acceptance_rate"] == 0.0
    assert speculation_figures(SpeculationStats())["acceptance_histogram"] == [0]


def test_the_config_names_every_problem(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"(?s)tokenizer.*model_name.*redis_url"):
        GatewayConfig(tokenizer=str(tmp_path / "nowhere"), model_name="")
