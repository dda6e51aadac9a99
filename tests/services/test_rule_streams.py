"""Rules over real sockets: a verifier and a whole drafter on tiny models, and what travels between them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from specgrove.draft_laws import check_laws
from specgrove.proto.v1 import generation_pb2
from specgrove.proto.v1 import speculation_pb2 as pb
from specgrove.runtime.loading import LoadedModel, load_model
from specgrove.sampling.params import SamplingParams
from specgrove.sampling.rules import Rule
from specgrove.telemetry import CollectorRegistry
from specgrove.wire import draft_from_proto, rule_to_proto, sampling_to_proto
from support.draft_streams import DraftStream, DraftVerifier
from support.live_drafter import drafter_config, running_drafter
from support.tiny_models import write_tiny_model
from support.tiny_verifier import TinyVerifier, request_message, running_verifier

PROMPT = [5, 6, 7, 5, 6, 7]
VOCAB_SIZE = 96
SAMPLED = SamplingParams(temperature=1.0, top_k=12)


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("target"), seed=1)


@pytest.fixture(scope="module")
def target(target_folder: Path) -> LoadedModel:
    return load_model(target_folder, "float32")


@asynccontextmanager
async def drafter_for(
    folder: Path, address: str, registry: CollectorRegistry | None = None, **settings: Any
) -> AsyncIterator[None]:
    async with running_drafter(drafter_config([folder, folder], [address], **settings), registry):
        yield


async def _first_tree(folder: Path, opening: pb.Open, **settings: Any) -> pb.TokenTree:
    fake = DraftVerifier()
    await fake.start()
    try:
        async with drafter_for(folder, fake.address, **settings):
            stream: DraftStream = await fake.stream()
            stream.send(open=opening)
            return await stream.tree()
    finally:
        await fake.stop()


def _open(rule: Rule, sampling: SamplingParams = SAMPLED, expansion: tuple[int, ...] = ()) -> pb.Open:
    return pb.Open(
        session_key=1,
        token_ids=PROMPT,
        sampling=sampling_to_proto(sampling),
        budget=pb.DraftBudget(max_nodes=9, max_depth=4),
        rule=rule_to_proto(rule),
        expansion=expansion,
    )


@pytest.mark.parametrize(("is_stacked", "num_root_laws"), [(True, 1), (False, 2)])
async def test_drafts_under_mss_bring_laws_that_a_verifier_takes(
    target_folder: Path, is_stacked: bool, num_root_laws: int
) -> None:
    """Two SSMs that run as one draw from one law, two that grow trees of their own from two."""
    message = await _first_tree(target_folder, _open(Rule.MSS), stack_ssms=is_stacked)
    draft = draft_from_proto(message, max_nodes=9)
    tree = draft.to_tree(PROMPT[-1], vocab_size=VOCAB_SIZE, max_nodes=9, max_depth=4)
    laws = check_laws(tree, draft.laws, vocab_size=VOCAB_SIZE, max_draws=9)
    # The session's own truncation leaves 12 tokens.
    assert sum(len(law.token_ids) == 12 for law in laws if law.parent == 0) == num_root_laws
    assert sum(len(law.draws) for law in laws) > 5


async def test_a_client_s_shape_travels_to_the_tree(target_folder: Path) -> None:
    opening = _open(Rule.COUPLED, SamplingParams(temperature=0.0), (3, 1))
    message = await _first_tree(target_folder, opening, prompt_lookup=False)
    assert list(message.parents).count(0) == 3
    assert len(message.token_ids) == 6
    assert not message.laws


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_whole_drafter_serves_every_rule(
    target: LoadedModel, target_folder: Path, rule: Rule, temperature: float
) -> None:
    async with running_verifier(target, max_nodes=8, max_depth=4) as verifier:
        plain = await _generate(verifier, rule, temperature, is_speculative=False)
        async with drafter_for(target_folder, verifier.address):
            await verifier.until(lambda: verifier.engine.num_drafters == 1)
            drafted = await _generate(verifier, rule, temperature)
        await verifier.assert_empty()
        assert drafted.last.stats.num_accepted_tokens > 4  # the SSM is the target itself
        for reason in ("malformed", "over_budget", "divergent"):
            assert verifier.sample("specgrove:stale_drafts_total", reason=reason) == 0
    if temperature == 0.0 or rule is not Rule.MSS:  # what is drawn under mss depends on the drafts, its law does not
        assert drafted.token_ids == plain.token_ids


async def _generate(verifier: TinyVerifier, rule: Rule, temperature: float, *, is_speculative: bool = True) -> Any:
    message = request_message(PROMPT, 24, temperature=temperature, seed=5, is_speculative=is_speculative)
    message.speculation.rule = rule_to_proto(rule)
    return await verifier.generate(message)


async def test_the_verifiers_own_rule_serves_requests_that_name_none(target: LoadedModel, target_folder: Path) -> None:
    assert rule_to_proto(None) == generation_pb2.VERIFICATION_RULE_UNSPECIFIED
    async with running_verifier(target, rule="mss") as verifier, drafter_for(target_folder, verifier.address):
        await verifier.until(lambda: verifier.engine.num_drafters == 1)
        await verifier.generate(request_message(PROMPT, 12, temperature=1.0))
        assert verifier.sample("specgrove:spec_decode_num_drafts_by_rule_total", rule="mss") > 0
