"""Requests through gateway, verifier and drafter: speculation shows in no option, and no failure does."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from specgrove.runtime.loading import LoadedModel, load_model
from specgrove.telemetry import CollectorRegistry
from support.gateway import RunningGateway, running_gateway
from support.live_drafter import drafter_config, running_drafter
from support.tiny_models import own_logits, own_model, text_of, write_tiny_model
from support.tiny_verifier import TinyVerifier, running_verifier

PROMPT = list(range(10, 34))
PENALISED = {"repetition_penalty": 1.3, "frequency_penalty": 1.5, "presence_penalty": 0.5}
ASKED: list[dict[str, Any]] = [
    {"temperature": 0, "frequency_penalty": 2.0},
    {"temperature": 0, "repetition_penalty": 2.0, "logprobs": 2, "echo": True},
    {"temperature": 0.8, **PENALISED, "logprobs": 5, "n": 3},
    {"temperature": 1.2, "top_k": 20, "presence_penalty": -2, "logit_bias": {"40": 3.5, "41": -100}, "logprobs": 0},
    {
        "temperature": 1.0,
        **PENALISED,
        "min_tokens": 5,
        "stop": ["A", "b"],
        "stop_token_ids": [50],
        "n": 2,
        "logprobs": 1,
    },
    {"temperature": 0.9, **PENALISED, "speculation": {"rule": "naive"}},
]


@dataclass(frozen=True, slots=True)
class System:
    """A gateway before a verifier whose drafter has the target's own weights, and knows nothing of penalties."""

    gateway: RunningGateway
    verifier: TinyVerifier
    own: Any


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("target"), seed=1)


@pytest.fixture(scope="module")
def target(folder: Path) -> LoadedModel:
    torch.set_num_threads(1)
    return load_model(folder, "float32")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(folder: Path, target: LoadedModel) -> AsyncIterator[System]:
    async with (
        running_verifier(target, max_draft_wait_ms=5000.0) as verifier,
        running_drafter(drafter_config([folder], [verifier.address], min_path_prob=0.0), CollectorRegistry()),
        running_gateway(folder, [verifier]) as gateway,
    ):
        await verifier.until(lambda: verifier.engine.num_drafters == 1)
        yield System(gateway, verifier, own_model(folder))
        await verifier.assert_empty()


async def _complete(gateway: RunningGateway, **fields: Any) -> dict[str, Any]:
    response = await gateway.complete(**{"prompt": PROMPT, "max_tokens": 30, "seed": 5, "ignore_eos": True, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def _said(answer: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    return [
        (choice["text"], choice["finish_reason"], (choice["logprobs"] or {}).get("tokens", []))
        for choice in answer["choices"]
    ]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("fields", ASKED, ids=str)
async def test_speculation_shows_in_no_option_and_every_token_has_its_logprob(
    system: System, fields: dict[str, Any]
) -> None:
    drafted = await _complete(system.gateway, **fields)
    plain = await _complete(
        system.gateway, **{**fields, "speculation": {**fields.get("speculation", {}), "enabled": False}}
    )
    assert _said(drafted) == _said(plain)
    assert drafted["usage"] == plain["usage"]
    assert drafted["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0
    assert plain["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0
    num_prompts = len(drafted["choices"]) if fields.get("echo") else 0
    if "logprobs" in fields:
        num_entries = sum(len(choice["logprobs"]["tokens"]) for choice in drafted["choices"])
        assert num_entries == drafted["usage"]["completion_tokens"] + num_prompts * len(PROMPT)


@pytest.mark.asyncio(loop_scope="module")
async def test_logprobs_are_those_of_a_fresh_prefill_of_prompt_and_answer(system: System) -> None:
    answer = await _complete(system.gateway, temperature=0.7, **PENALISED, echo=True, logprobs=1)
    [choice] = answer["choices"]
    assert choice["text"].startswith(text_of(PROMPT))
    whole = PROMPT + [ord(char) - ord("!") + 3 for char in choice["text"][len(PROMPT) :]]
    assert text_of(whole) == choice["text"]
    truth = own_logits(system.own, whole).log_softmax(-1)
    told = choice["logprobs"]["token_logprobs"]
    expected = [float(truth[place, token_id]) for place, token_id in enumerate(whole[1:])]
    assert told[0] is None
    assert told[1:] == pytest.approx(expected, abs=1e-3)


@pytest.mark.asyncio(loop_scope="module")
async def test_the_prompt_of_many_choices_is_read_once(system: System) -> None:
    prompt = list(range(60, 30, -1))
    before = system.verifier.sample("specgrove:prefix_cache_hits_total")
    await _complete(system.gateway, prompt=prompt, n=4, max_tokens=5)
    hits = system.verifier.sample("specgrove:prefix_cache_hits_total") - before
    assert hits == 3 * 28  # whole blocks of 4, and a row is left to give logits


@pytest.mark.parametrize("num_choices", [1, 2])
async def test_a_verifier_that_dies_in_mid_stream_is_not_seen(
    folder: Path, target: LoadedModel, num_choices: int
) -> None:
    fields = {"temperature": 0.8, **PENALISED, "logprobs": 2, "n": num_choices, "max_tokens": 120}
    async with (
        running_verifier(target, "one") as one,
        running_verifier(target, "two") as two,
        running_gateway(folder, [one, two]) as gateway,
    ):
        whole = await _complete(gateway, **fields)
        body = {"prompt": PROMPT, "seed": 5, "ignore_eos": True, "stream": True, **fields}
        texts = [""] * num_choices
        names: list[list[str]] = [[] for _ in range(num_choices)]
        num_chunks = 0
        gate = threading.Event()
        async with gateway.http.stream("POST", "/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk
                for choice in chunk["choices"]:
                    texts[choice["index"]] += choice["text"]
                    names[choice["index"]] += (choice["logprobs"] or {}).get("tokens", [])
                num_chunks += 1
                if num_chunks == 9:
                    [busy] = [verifier for verifier in (one, two) if verifier.engine.num_running]
                    busy.engine._inbox.command(lambda: gate.wait(10) and None)
                    await busy.server.stop(0.0)
                    gate.set()
        assert [(text, tokens) for text, tokens in zip(texts, names, strict=True)] == [
            (choice["text"], choice["logprobs"]["tokens"]) for choice in whole["choices"]
        ]
        assert [len(tokens) for tokens in names] == [120] * num_choices
        metrics = await gateway.metrics()
        assert metrics['specgrove:generation_resumes_total{phase="decode"}'] == num_choices
