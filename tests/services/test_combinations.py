"""Everything at once, over real streams: members, several drafters, rules, shapes, features and drafting ahead."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from specgrove.proto.v1 import verifier_pb2
from specgrove.runtime.loading import load_model
from specgrove.sampling.rules import Rule
from specgrove.telemetry import CollectorRegistry
from specgrove.wire import rule_to_proto
from support.feature_maps import write_feature_maps
from support.live_drafter import drafter_config, running_drafter
from support.tiny_models import write_tiny_model
from support.tiny_verifier import request_message, running_verifier
from support.waiting import until

_NUM_SESSIONS = 3
_ALWAYS_AHEAD = {"ahead": "on", "max_ahead_share": 1.0, "min_ahead_prob": 0.0}


@dataclass(frozen=True, slots=True)
class Folders:
    target: Path
    fed: Path  # a feature-fed SSM with weights of its own
    mate: Path  # another of its shape: the two run as one
    twin: Path  # the target's weights once more


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    fed = write_tiny_model(tmp_path_factory.mktemp("fed"), seed=7)
    write_feature_maps(fed, (3, 1))
    mate = write_tiny_model(tmp_path_factory.mktemp("mate"), seed=8)
    target, twin = (
        write_tiny_model(tmp_path_factory.mktemp(name), num_hidden_layers=4, seed=1) for name in ("target", "twin")
    )
    return Folders(target, fed, mate, twin)


@pytest.mark.parametrize("expansion", [(), (2, 2)], ids=["best first", "2,2"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("num_drafters", [1, 2])
@pytest.mark.parametrize("ahead", [{"ahead": "off"}, _ALWAYS_AHEAD], ids=["ahead off", "ahead on"])
async def test_no_combination_changes_a_token_or_leaves_a_mirror(
    folders: Folders,
    rule: Rule,
    temperature: float,
    num_drafters: int,
    expansion: tuple[int, ...],
    ahead: dict[str, object],
) -> None:
    """Under `mss` a temperature draws other tokens than plain decoding does (of the same law: tests/statistics)."""

    def ask(number: int, *, speculation: bool) -> verifier_pb2.VerifierGenerateRequest:
        prompt = [5 + number, 6, 7, 5 + number, 6, 7]
        message = request_message(
            prompt,
            30,
            session_id=f"s{number}",
            temperature=temperature,
            seed=number + 1,
            is_speculative=speculation,
        )
        message.speculation.rule = rule_to_proto(rule)
        message.speculation.expansion.extend(expansion)
        return message

    flags = {"max_draft_wait_ms": 5000.0, "drafters_per_session": num_drafters}
    async with running_verifier(load_model(folders.target, "float32"), **flags) as verifier:
        plain = [await verifier.generate(ask(number, speculation=False)) for number in range(_NUM_SESSIONS)]
        registry = CollectorRegistry()
        async with AsyncExitStack() as stack:
            drafters = []
            for number in range(num_drafters):
                ssms = [folders.fed, folders.mate, folders.twin] if number == 0 else [folders.twin]
                config = drafter_config(ssms, [verifier.address], min_path_prob=0.0, kv_tokens=4096, **ahead)
                own = registry if number == 0 else CollectorRegistry()
                drafters.append(await stack.enter_async_context(running_drafter(config, own)))
            await verifier.until(lambda: verifier.engine.num_drafters == num_drafters)
            asks = [ask(number, speculation=True) for number in range(_NUM_SESSIONS)]
            drafted = await asyncio.gather(*map(verifier.generate, asks))
            for drafter in drafters:
                await until(lambda drafter=drafter: drafter.inbox.num_mirrors() == 0)  # type: ignore[misc]
        await verifier.assert_empty()
        assert sum(answer.last.stats.num_accepted_tokens for answer in drafted) > 0
        for reason in ("malformed", "over_budget", "divergent"):
            assert verifier.sample("specgrove:stale_drafts_total", reason=reason) == 0
    fed_rows = registry.get_sample_value("specgrove:drafter_num_feature_fed_rows_total", {"member": folders.fed.name})
    assert fed_rows is not None
    assert fed_rows > 0
    if temperature == 0 or rule is not Rule.MSS:
        assert [answer.token_ids for answer in drafted] == [answer.token_ids for answer in plain]
