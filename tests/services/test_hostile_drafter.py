"""A drafter that sends endless lists: what no draft can hold is not read, and changes no token by any rule."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from specgrove.features import MAX_FEATURE_BYTES
from specgrove.proto.v1 import speculation_pb2 as pb
from specgrove.runtime.loading import LoadedModel, load_model
from specgrove.sampling.rules import Rule
from specgrove.wire import rule_to_proto
from specgrove_verifier.mailbox import MEMBER_BITS
from support.tiny_models import write_tiny_model
from support.tiny_verifier import HeldSession, TinyVerifier, drafting, request_message, running_verifier, tree_message

PROMPT = [5, 6, 7]
NUM_LAWS = 100_000  # half a megabyte; the cap of a message lets sixteen times as many through


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(write_tiny_model(tmp_path_factory.mktemp("target"), seed=1), "float32")


@pytest.fixture
async def verifier(target: LoadedModel) -> AsyncIterator[TinyVerifier]:
    async with running_verifier(target) as running:
        yield running


def with_endless_laws(session: HeldSession) -> pb.DrafterMessage | None:
    if min(session.max_nodes, session.max_depth) == 0:
        return None
    message = tree_message(session, [[5]])
    message.tree.laws.extend([pb.ChildLaw(draws=[1])] * NUM_LAWS)
    return message


@pytest.mark.parametrize("rule", list(Rule))
async def test_endless_laws_cost_no_token(verifier: TinyVerifier, rule: Rule) -> None:
    sampling: dict[str, Any] = {"temperature": 1.0, "seed": 3, "rule": rule_to_proto(rule)}
    plain = await verifier.generate(request_message(PROMPT, 8, is_speculative=False, **sampling))
    async with drafting(verifier, with_endless_laws):
        answer = await verifier.generate(request_message(PROMPT, 8, **sampling))
    assert answer.token_ids == plain.token_ids  # under mss too: with such laws these are no drafts
    assert (verifier.sample("specgrove:stale_drafts_total", reason="over_budget") > 3) == (rule is Rule.MSS)
    await verifier.assert_empty()


async def test_endless_lists_in_a_hello_are_cut_or_refused(verifier: TinyVerifier) -> None:
    layers = [1] * (MAX_FEATURE_BYTES + 5)
    async with drafting(verifier, lambda session: None, models=["ssm"] * NUM_LAWS, feature_layers=layers):
        await verifier.until(lambda: verifier.engine.num_drafters == 1)
        [drafter] = verifier.engine._pool._drafters.values()
        assert len(drafter.member_names) == MEMBER_BITS
        assert drafter.feature_layers == ()
