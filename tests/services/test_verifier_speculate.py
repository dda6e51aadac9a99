"""The verifier's draft stream over a real socket, with a drafter that the test plays."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from specgrove.proto.v1 import speculation_pb2
from specgrove.rpc import AioRpcError, StatusCode
from specgrove.runtime.loading import LoadedModel, load_model
from specgrove.tree import TokenTree
from support.tiny_models import VOCAB_SIZE, write_tiny_model
from support.tiny_verifier import (
    HeldSession,
    Reply,
    ScriptedDrafter,
    TinyVerifier,
    drafting,
    request_message,
    running_verifier,
    tree_message,
)

DrafterMessage = speculation_pb2.DrafterMessage
PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(write_tiny_model(tmp_path_factory.mktemp("target"), seed=1), "float32")


@pytest.fixture
async def verifier(target: LoadedModel) -> AsyncIterator[TinyVerifier]:
    async with running_verifier(target) as running:
        yield running


def knowing(truths: Sequence[Sequence[int]]) -> Reply:
    """Chains of the true continuation, as long as the budget."""

    def reply(session: HeldSession) -> DrafterMessage | None:
        known = len(session.token_ids)
        truth = next(list(ids) for ids in truths if list(ids[:known]) == session.token_ids)
        length = min(session.max_depth, session.max_nodes)
        return tree_message(session, [truth[known : known + length]]) if length else None

    return reply


async def _truth(
    verifier: TinyVerifier, prompt: list[int] = PROMPT, max_tokens: int = 16, **settings: Any
) -> list[int]:
    answer = await verifier.generate(request_message(prompt, max_tokens, is_speculative=False, **settings))
    return prompt + answer.token_ids


async def test_the_welcome_says_what_is_served_and_the_caps(verifier: TinyVerifier) -> None:
    async with drafting(verifier, lambda session: None) as drafter:
        assert drafter.welcome == speculation_pb2.Welcome(
            verifier_id="tiny-verifier",
            incarnation="1",
            model="tiny",
            vocab_size=VOCAB_SIZE,
            max_nodes=8,
            max_depth=5,
        )
        await verifier.until(lambda: verifier.engine.num_drafters == 1)
    await verifier.until(lambda: verifier.engine.num_drafters == 0)


async def test_a_knowing_drafter_saves_forwards_and_changes_no_token(verifier: TinyVerifier) -> None:
    truth = await _truth(verifier, temperature=0.8, seed=3)
    forwards = verifier.num_forwards
    async with drafting(verifier, knowing([truth])) as drafter:
        answer = await verifier.generate(request_message(PROMPT, 16, temperature=0.8, seed=3))
        assert PROMPT + answer.token_ids == truth
        assert verifier.num_forwards - forwards <= 6
        assert answer.last.stats.num_accepted_tokens >= 10
        opening = drafter.received[0].open
        assert list(opening.token_ids)[: len(PROMPT)] == PROMPT
        assert opening.sampling.seed == 3
        assert (opening.budget.max_nodes, opening.budget.max_depth) == (8, 5)
        await verifier.until(lambda: drafter.received[-1].WhichOneof("message") == "close")
        assert drafter.received[-1].close.reason == "length"


async def test_what_a_member_contributes_is_counted_under_the_names_of_its_hello(verifier: TinyVerifier) -> None:
    truth = await _truth(verifier)

    def reply(session: HeldSession) -> DrafterMessage | None:
        known = len(session.token_ids)
        if not session.max_nodes or known == len(truth):
            return None
        tree = TokenTree((truth[known - 1], truth[known], (truth[known] + 1) % VOCAB_SIZE), (-1, 0, 0), (0, 0b01, 0b10))
        return DrafterMessage(tree=session.tree_message(tree))

    def counted(kind: str, member: str) -> float | None:
        name = f"specgrove:spec_decode_num_{kind}_member_total"
        return verifier.registry.get_sample_value(name, {"drafter": "scripted", "member": member})

    async with drafting(verifier, reply, models=["ssm", "prompt_lookup"]):
        answer = await verifier.generate(request_message(PROMPT, 16))
        num_accepted = answer.last.stats.num_accepted_tokens
        assert num_accepted > 0
        assert counted("accepted_tokens_by", "ssm") == counted("accepted_tokens_only", "ssm") == num_accepted
        assert counted("accepted_tokens_by", "prompt_lookup") == 0
        assert counted("draft_tokens_by", "prompt_lookup") == counted("draft_tokens_by", "ssm") >= num_accepted
    await verifier.until(lambda: counted("draft_tokens_by", "ssm") is None)


async def test_eight_drafted_streams_equal_their_solo_runs(verifier: TinyVerifier) -> None:
    prompts = [[5 + n, 9, 7 * n + 3] for n in range(8)]
    truths = [await _truth(verifier, prompt, session_id=f"s{n}") for n, prompt in enumerate(prompts)]
    forwards = verifier.num_forwards
    async with drafting(verifier, knowing(truths)):
        requests = [request_message(prompt, 16, session_id=f"s{n}") for n, prompt in enumerate(prompts)]
        answers = await asyncio.gather(*(verifier.generate(request) for request in requests))
    assert [prompt + answer.token_ids for prompt, answer in zip(prompts, answers, strict=True)] == truths
    assert verifier.num_forwards - forwards < 8 * 16 / 4
    await verifier.assert_empty()


@pytest.mark.parametrize(
    ("hello", "code", "complaint"),
    [
        ({"vocab_hash": "another"}, StatusCode.FAILED_PRECONDITION, "vocabulary another is not the target's"),
        ({"vocab_hash": ""}, StatusCode.FAILED_PRECONDITION, "vocabulary"),
        ({"protocol_version": 2}, StatusCode.FAILED_PRECONDITION, "protocol version 2"),
    ],
)
async def test_a_drafter_that_does_not_fit_is_refused_with_the_reason(
    verifier: TinyVerifier, hello: dict[str, Any], code: StatusCode, complaint: str
) -> None:
    with pytest.raises(AioRpcError) as caught:
        await ScriptedDrafter(verifier).connect(**hello)
    assert caught.value.code() is code
    assert complaint in (caught.value.details() or "")
    assert verifier.engine.num_drafters == 0


async def test_a_stream_that_does_not_begin_with_hello_is_refused(verifier: TinyVerifier) -> None:
    call = verifier.stub.Speculate()
    await call.write(DrafterMessage(decline=speculation_pb2.Decline(session_key=1)))
    with pytest.raises(AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is StatusCode.FAILED_PRECONDITION
    assert "Hello" in (caught.value.details() or "")


async def test_an_empty_stream_is_refused(verifier: TinyVerifier) -> None:
    call = verifier.stub.Speculate()
    await call.done_writing()
    with pytest.raises(AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is StatusCode.FAILED_PRECONDITION


async def test_a_second_hello_ends_the_stream_and_hurts_nobody_else(verifier: TinyVerifier) -> None:
    truth = await _truth(verifier)
    async with drafting(verifier, knowing([truth])):
        rude = ScriptedDrafter(verifier)
        await rude.connect()
        await rude.send(DrafterMessage(hello=speculation_pb2.Hello(protocol_version=1)))
        with pytest.raises(AioRpcError) as caught:
            await rude.serve()
        assert caught.value.code() is StatusCode.FAILED_PRECONDITION
        await verifier.until(lambda: verifier.engine.num_drafters == 1)
        answer = await verifier.generate(request_message(PROMPT, 16))
        assert PROMPT + answer.token_ids == truth
        assert answer.last.stats.num_accepted_tokens > 5


def _poison(session: HeldSession) -> list[DrafterMessage]:
    """Everything that is wrong at once, and after it an honest refusal."""
    key, length = session.opening.session_key, len(session.token_ids)
    honest = tree_message(session, [[3, 4]]).tree
    wrong = []
    for change in (
        {"token_ids": [VOCAB_SIZE, 4]},
        {"token_ids": [2**32 - 1, 4]},
        {"parents": [2, 0]},
        {"parents": [0, 2**32 - 1]},
        {"parents": [0]},
        {"members": [1]},
        {"token_ids": [3] * 500, "parents": [0] * 500, "members": []},
        {"base_hash": 5},
        {"base_len": length + 9},
        {"base_len": 0},
        {"session_key": key + 1000},
        {"session_key": 2**64 - 1},
    ):
        message = speculation_pb2.TokenTree()
        message.CopyFrom(honest)
        for name, value in change.items():
            message.ClearField(name)
            if isinstance(value, list):
                getattr(message, name).extend(value)
            else:
                setattr(message, name, value)
        wrong.append(DrafterMessage(tree=message))
    decline = speculation_pb2.Decline(session_key=key, base_len=length, reason=1)
    foreign = speculation_pb2.Decline(session_key=key + 7, base_len=3, reason=3)
    return [DrafterMessage(), *wrong, DrafterMessage(decline=foreign), DrafterMessage(decline=decline)]


async def test_bad_messages_hurt_neither_their_session_nor_another_nor_the_stream(verifier: TinyVerifier) -> None:
    prompts = {"poisoned": PROMPT, "clean": [40, 41, 42]}
    truths = {name: await _truth(verifier, prompt, session_id=name) for name, prompt in prompts.items()}
    honest = knowing(list(truths.values()))

    def reply(session: HeldSession) -> Any:
        is_poisoned = session.token_ids[:3] == PROMPT and len(session.token_ids) < 10
        return _poison(session) if is_poisoned else honest(session)

    async with drafting(verifier, reply):
        answers = await asyncio.gather(
            *(verifier.generate(request_message(prompt, 16, session_id=name)) for name, prompt in prompts.items())
        )
        for (name, prompt), answer in zip(prompts.items(), answers, strict=True):
            assert prompt + answer.token_ids == truths[name]
        assert answers[1].last.stats.num_accepted_tokens > 5
        assert answers[0].last.stats.num_accepted_tokens > 0  # after the poison, on the same stream
        assert verifier.engine.num_drafters == 1
    await verifier.assert_empty()


async def test_a_drafter_that_hangs_up_in_mid_stream_changes_nothing(verifier: TinyVerifier) -> None:
    truth = await _truth(verifier, max_tokens=60)
    honest = knowing([truth])
    hung_up = asyncio.Event()

    def reply(session: HeldSession) -> DrafterMessage | None:
        if len(session.token_ids) > 20:
            hung_up.set()
            drafter.call.cancel()
            return None
        return honest(session)

    async with drafting(verifier, reply) as drafter:
        answer = await verifier.generate(request_message(PROMPT, 60))
        assert PROMPT + answer.token_ids == truth
        assert hung_up.is_set()
        await verifier.until(lambda: verifier.engine.num_drafters == 0)


async def test_a_drafter_that_ends_its_side_is_let_go(verifier: TinyVerifier) -> None:
    drafter = ScriptedDrafter(verifier)
    await drafter.connect()
    await drafter.call.done_writing()
    await drafter.serve()
    assert await drafter.call.code() is StatusCode.OK
    await verifier.until(lambda: verifier.engine.num_drafters == 0)


async def test_a_drafter_that_attaches_in_mid_stream_is_used(verifier: TinyVerifier) -> None:
    truth = await _truth(verifier, max_tokens=200)
    call = verifier.stub.Generate(request_message(PROMPT, 200), timeout=30)
    messages = [await call.read()]
    async with drafting(verifier, knowing([truth])):
        while not messages[-1].finish_reason:
            messages.append(await call.read())
    tokens = [token_id for message in messages for token_id in message.token_ids]
    assert PROMPT + tokens == truth
    assert messages[-1].stats.num_accepted_tokens > 0


async def test_a_cancelled_generation_is_closed_at_the_drafter(verifier: TinyVerifier) -> None:
    async with drafting(verifier, lambda session: None) as drafter:
        call = verifier.stub.Generate(request_message(PROMPT, 200), timeout=30)
        await call.read()
        await verifier.until(lambda: bool(drafter.sessions))
        call.cancel()
        await verifier.until(lambda: not drafter.sessions)
        assert drafter.received[-1].close.reason == "cancelled"
    await verifier.assert_empty()


async def test_a_stream_leaves_no_task_behind(verifier: TinyVerifier) -> None:
    gc.collect()
    before = asyncio.all_tasks()
    for _ in range(3):
        drafter = ScriptedDrafter(verifier)
        await drafter.connect()
        await verifier.until(lambda: verifier.engine.num_drafters == 1)
        drafter.call.cancel()
        await verifier.until(lambda: verifier.engine.num_drafters == 0)
    await asyncio.sleep(0.1)
    names = [task.get_coro().__qualname__ for task in asyncio.all_tasks() - before]  # type: ignore[union-attr]
    assert [name for name in names if "Outbox" in name or "_read_drafts" in name] == []
