"""What speculation did shows in the answer, on both faces, streamed or not; and switched off it does nothing at all."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from specgrove.client import AsyncClient, SpeculationOptions, SpeculationStats
from specgrove.proto.v1 import speculation_pb2
from specgrove.runtime.loading import LoadedModel, load_model
from specgrove_gateway.openai_http.answers import speculation_figures
from specgrove_gateway.openai_http.headers import FIGURE_HEADERS
from support.gateway import RunningGateway, running_gateway
from support.tiny_models import write_tiny_model
from support.tiny_verifier import HeldSession, ScriptedDrafter, TinyVerifier, drafting, running_verifier, tree_message

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = [5, 6, 7]
MAX_TOKENS = 24
ASKED: dict[str, Any] = {"max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class System:
    """A gateway before a verifier, and a drafter that knows the answer to PROMPT and counts what it is told."""

    gateway: RunningGateway
    verifier: TinyVerifier
    drafter: ScriptedDrafter
    client: AsyncClient

    @property
    def opened(self) -> list[list[int]]:
        """What the drafter was told to mirror, an entry an Open."""
        return [list(message.open.token_ids) for message in self.drafter.received if message.HasField("open")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("target"), seed=1)


@pytest.fixture(scope="module")
def target(folder: Path) -> LoadedModel:
    return load_model(folder, "float32")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system(folder: Path, target: LoadedModel) -> AsyncIterator[System]:
    truth: list[int] = []

    def reply(session: HeldSession) -> speculation_pb2.DrafterMessage:
        known, length = len(session.token_ids), min(session.max_depth, session.max_nodes)
        path = truth[known : known + length] if truth[:known] == session.token_ids else []
        return tree_message(session, [path] if path else [[9]])

    async with (
        running_verifier(target) as verifier,
        running_gateway(folder, [verifier]) as gateway,
        AsyncClient(f"127.0.0.1:{gateway.ports.grpc}") as client,
        drafting(verifier, reply) as drafter,
    ):
        await verifier.until(lambda: verifier.engine.num_drafters == 1)
        plain = await client.generate(
            token_ids=PROMPT, max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True, speculation=False
        )
        truth += [*PROMPT, *plain.token_ids]
        yield System(gateway, verifier, drafter, client)
        await verifier.assert_empty()


async def _ask(system: System, face: str, **fields: Any) -> dict[str, Any]:
    """The figures of one answer, as `metrics.speculative_decoding` has them; with the HTTP headers, if any."""
    if face == "grpc":
        options = fields.get("speculation", {})
        answer = await system.client.generate(
            token_ids=PROMPT,
            max_tokens=MAX_TOKENS,
            temperature=0.0,
            ignore_eos=True,
            speculation=SpeculationOptions(
                is_enabled=options.get("enabled", True), max_nodes=options.get("max_nodes", 0)
            ),
        )
        return speculation_figures(answer.stats)
    is_stream = face == "stream"
    response = await system.gateway.complete(PROMPT, **ASKED, stream=is_stream, **fields)
    assert response.headers["x-specgrove-speculation"] == (
        "on" if fields.get("speculation", {}).get("enabled", True) else "off"
    )
    assert is_stream != ("x-specgrove-num-draft-tokens" in response.headers), "a stream does not know it yet"
    if is_stream:
        return dict(
            json.loads(response.text.split("\n\n")[-3].removeprefix("data: "))["metrics"]["speculative_decoding"]
        )
    figures: dict[str, Any] = response.json()["metrics"]["speculative_decoding"]
    for name in FIGURE_HEADERS:
        shown = figures[name.removeprefix("x-specgrove-").replace("-", "_")]
        assert float(response.headers[name]) == pytest.approx(shown, rel=1e-5), name
    return figures


@pytest.mark.parametrize("face", ["whole", "stream", "grpc"])
async def test_the_figures_tell_what_speculation_saved(system: System, face: str) -> None:
    num_opened = len(system.opened)
    figures = await _ask(system, face)
    assert [token_ids[: len(PROMPT)] for token_ids in system.opened[num_opened:]] == [PROMPT]
    assert figures["num_committed_tokens"] == MAX_TOKENS
    assert figures["num_drafts"] > 0
    assert figures["num_accepted_draft_tokens"] > figures["num_spec_steps"]
    assert figures["num_spec_steps"] < MAX_TOKENS / 2
    assert figures["mean_acceptance_length"] == pytest.approx(MAX_TOKENS / figures["num_spec_steps"])
    assert sum(figures["acceptance_histogram"]) == figures["num_spec_steps"]


@pytest.mark.parametrize("face", ["whole", "stream", "grpc"])
async def test_switched_off_nothing_is_drafted_and_no_drafter_hears_of_it(system: System, face: str) -> None:
    await system.verifier.until(lambda: not system.drafter.sessions)  # the Close of whoever was before
    num_received = len(system.drafter.received)
    figures = await _ask(system, face, speculation={"enabled": False})
    await system.verifier.assert_empty()
    assert system.drafter.received[num_received:] == [], "no Open, no Commit, no Close"
    assert (figures["num_drafts"], figures["num_draft_tokens"], figures["drafted_per_pos"]) == (0, 0, [])
    assert (figures["num_spec_steps"], figures["mean_acceptance_length"]) == (MAX_TOKENS, 1.0)


@pytest.mark.parametrize("face", ["whole", "stream", "grpc"])
async def test_a_request_s_own_limit_of_nodes_is_kept_and_shown(system: System, face: str) -> None:
    figures = await _ask(system, face, speculation={"max_nodes": 2})
    assert 0 < figures["num_draft_tokens"] <= 2 * figures["num_drafts"]
    assert 3 > figures["mean_acceptance_length"] > 1.5


async def test_every_figure_header_is_a_figure_of_the_body() -> None:
    names = {name.removeprefix("x-specgrove-").replace("-", "_") for name in FIGURE_HEADERS}
    assert names <= set(speculation_figures(SpeculationStats()))
