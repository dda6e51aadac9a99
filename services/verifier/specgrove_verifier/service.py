"""The verifier's gRPC face. Turns messages into engine calls and outputs into messages; knows no model."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

from specgrove import wire
from specgrove.errors import ProtocolViolation, SessionTaken, VocabularyMismatch
from specgrove.features import MAX_FEATURE_BYTES
from specgrove.proto.v1 import speculation_pb2, verifier_pb2, verifier_pb2_grpc
from specgrove.rpc import ServicerContext
from specgrove.telemetry import log_context
from specgrove_verifier.admission import Admission, Epochs
from specgrove_verifier.drafter_pool import CommitTokens, Drafter, OpenSession, SessionUpdate
from specgrove_verifier.engine import Engine
from specgrove_verifier.generation import Generation, GenerationRequest, StepOutput
from specgrove_verifier.mailbox import MEMBER_BITS, DraftBudget
from specgrove_verifier.open_load import LoadLimits, OpenLoad
from specgrove_verifier.outbox import Outbox

add_to_server = verifier_pb2_grpc.add_VerifierServiceServicer_to_server
SERVICE_NAME = "specgrove.proto.v1.VerifierService"

_log = logging.getLogger(__name__)
_HELLO_TIMEOUT_S = 10.0
_MAX_DRAFTER_SESSIONS = 65_536


@dataclass(frozen=True, slots=True)
class Identity:
    """What this verifier tells the others about itself."""

    verifier_id: str
    incarnation: str
    model_name: str
    vocab_hash: str
    vocab_size: int
    max_context_len: int
    max_sessions: int
    load_limits: LoadLimits
    limits: DraftBudget


class VerifierService(verifier_pb2_grpc.VerifierServiceServicer):
    """Generate, Speculate, Describe."""

    def __init__(self, engine: Engine, admission: Admission, identity: Identity) -> None:
        self._engine = engine
        self._admission = admission
        self._identity = identity
        self._epochs = Epochs()
        self._streams = itertools.count(1)
        self._by_session: dict[str, Generation] = {}
        self._load = OpenLoad(identity.load_limits, engine.note_refusal)

    async def Generate(
        self, request: verifier_pb2.VerifierGenerateRequest, context: ServicerContext
    ) -> AsyncIterator[verifier_pb2.VerifierGenerateResponse]:
        """Run one generation; leaving this generator, for whatever reason, releases everything of it."""
        checked = _request_from_proto(request)
        self._admission.check(checked, request.model)
        num_tokens = len(checked.prompt_token_ids) + len(checked.committed_token_ids)
        self._load.check(num_tokens)
        self._epochs.admit(checked.session_id, checked.epoch)
        outputs: asyncio.Queue[StepOutput] = asyncio.Queue()  # at most max_tokens entries ever
        loop = asyncio.get_running_loop()
        generation, finished = self._admission.make(checked, lambda output: _post(loop, outputs, output))
        if finished is not None:
            yield _response(checked.epoch, finished)
            return
        self._supersede(checked.session_id, generation)
        is_over = False
        self._load.enter(num_tokens)
        try:
            with log_context(request_id=checked.request_id, session_id=checked.session_id):
                _log.debug("generation starts", extra={"prompt_tokens": len(checked.prompt_token_ids)})
            self._engine.submit(generation)
            while not is_over:
                output = await outputs.get()
                is_over = output.is_last
                if output.error is not None:
                    raise output.error
                yield _response(checked.epoch, output)
        finally:
            if not is_over:
                self._engine.cancel(generation)
            self._load.leave(num_tokens)
            if self._by_session.get(checked.session_id) is generation:
                del self._by_session[checked.session_id]

    async def Speculate(
        self, request_iterator: AsyncIterator[speculation_pb2.DrafterMessage], context: ServicerContext
    ) -> AsyncIterator[speculation_pb2.VerifierMessage]:
        """The draft stream of one drafter, from its Hello to the end of the call."""
        hello = await self._read_hello(request_iterator)
        number = next(self._streams)
        outbox = Outbox(asyncio.get_running_loop())
        yield speculation_pb2.VerifierMessage(welcome=self._welcome())
        max_sessions = min(hello.max_sessions or _MAX_DRAFTER_SESSIONS, _MAX_DRAFTER_SESSIONS)
        # Cut where a longer list can be of no use: so many layers are refused, so many members have no bit.
        layers, members = tuple(hello.feature_layers[:MAX_FEATURE_BYTES]), tuple(hello.models[:MEMBER_BITS])
        self._engine.attach(
            Drafter(number, hello.drafter_id, max_sessions, outbox, feature_layers=layers, member_names=members)
        )
        reader = asyncio.create_task(self._read_drafts(number, request_iterator))
        news = asyncio.create_task(outbox.take())
        try:
            while True:
                await asyncio.wait({news, reader}, return_when=asyncio.FIRST_COMPLETED)
                if reader.done():
                    reader.result()  # raises what ended it
                    return
                updates = news.result()
                news = asyncio.create_task(outbox.take())
                for update in updates:
                    yield _update_to_proto(update)
        finally:
            reader.cancel()
            news.cancel()
            self._engine.detach(number)

    async def Describe(
        self, request: verifier_pb2.DescribeRequest, context: ServicerContext
    ) -> verifier_pb2.DescribeResponse:
        identity = self._identity
        return verifier_pb2.DescribeResponse(
            verifier_id=identity.verifier_id,
            incarnation=identity.incarnation,
            model=identity.model_name,
            vocab_hash=identity.vocab_hash,
            vocab_size=identity.vocab_size,
            max_context_len=identity.max_context_len,
            num_running=self._engine.num_running,
            num_waiting=self._engine.num_waiting,
            max_sessions=identity.max_sessions,
            num_drafters=self._engine.num_drafters,
        )

    def _supersede(self, session_id: str, generation: Generation) -> None:
        """A newer owner of a session ends what an older one has running here."""
        before = self._by_session.get(session_id)
        if before is not None and before.request.epoch < generation.request.epoch:
            self._engine.cancel(before, SessionTaken(f"session {session_id} was taken over by a newer call"))
        self._by_session[session_id] = generation

    async def _read_hello(self, messages: AsyncIterator[speculation_pb2.DrafterMessage]) -> speculation_pb2.Hello:
        try:
            async with asyncio.timeout(_HELLO_TIMEOUT_S):
                first = await anext(messages, None)
        except TimeoutError:
            raise ProtocolViolation(f"no Hello within {_HELLO_TIMEOUT_S:.0f} s") from None
        if first is None or first.WhichOneof("message") != "hello":
            raise ProtocolViolation("the first message of a draft stream must be Hello")
        hello = first.hello
        if hello.protocol_version != wire.PROTOCOL_VERSION:
            raise ProtocolViolation(
                f"protocol version {hello.protocol_version} is not spoken here; this verifier speaks "
                f"{wire.PROTOCOL_VERSION}: upgrade the older pod"
            )
        if hello.vocab_hash != self._identity.vocab_hash:
            raise VocabularyMismatch(
                f"the drafter's vocabulary {hello.vocab_hash} is not the target's {self._identity.vocab_hash}; "
                "start it with the tokenizer of the model that is served here"
            )
        return hello

    async def _read_drafts(self, number: int, messages: AsyncIterator[speculation_pb2.DrafterMessage]) -> None:
        async for message in messages:
            match message.WhichOneof("message"):
                case "tree":
                    draft = wire.draft_from_proto(message.tree, max_nodes=self._identity.limits.max_nodes)
                    self._engine.offer_draft(number, draft)
                case "decline":
                    decline = message.decline
                    self._engine.decline_draft(
                        number,
                        decline.session_key,
                        decline.base_len,
                        lost_place=decline.reason == speculation_pb2.Decline.REASON_LOST_PLACE,
                        no_room=decline.reason == speculation_pb2.Decline.REASON_NO_CAPACITY,
                    )
                case "hello":
                    raise ProtocolViolation("Hello may be said once")
                case _:
                    pass  # a message of a later version: ignored, as protobuf ignores unknown fields

    def _welcome(self) -> speculation_pb2.Welcome:
        identity = self._identity
        return speculation_pb2.Welcome(
            verifier_id=identity.verifier_id,
            incarnation=identity.incarnation,
            model=identity.model_name,
            vocab_size=identity.vocab_size,
            max_nodes=identity.limits.max_nodes,
            max_depth=identity.limits.max_depth,
        )


def _post(loop: asyncio.AbstractEventLoop, outputs: asyncio.Queue[StepOutput], output: StepOutput) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending
        loop.call_soon_threadsafe(outputs.put_nowait, output)


def _request_from_proto(message: verifier_pb2.VerifierGenerateRequest) -> GenerationRequest:
    return GenerationRequest(
        session_id=message.session_id or message.request_id,
        epoch=message.epoch,
        request_id=message.request_id,
        prompt_token_ids=tuple(message.prompt_token_ids),
        committed_token_ids=tuple(message.committed_token_ids),
        sampling=wire.sampling_from_proto(message.sampling),
        stop=wire.stop_from_proto(message.stop),
        speculation=wire.speculation_from_proto(message.speculation),
        priority=message.priority,
        top_logprobs=message.top_logprobs if message.HasField("top_logprobs") else None,
        wants_prompt_logprobs=message.prompt_logprobs,
    )


def _response(epoch: int, output: StepOutput) -> verifier_pb2.VerifierGenerateResponse:
    response = verifier_pb2.VerifierGenerateResponse(
        epoch=epoch,
        token_ids=output.token_ids,
        logprobs=wire.logprobs_to_proto(output.logprobs),
        prompt_logprobs=wire.logprobs_to_proto(output.prompt_logprobs),
    )
    if output.finish_reason is not None:
        response.finish_reason = wire.finish_reason_to_proto(output.finish_reason)
        response.stop_string = output.stop_string
    if output.stats is not None:
        response.stats.CopyFrom(wire.stats_to_proto(output.stats))
    return response


def _budget_to_proto(budget: DraftBudget) -> speculation_pb2.DraftBudget:
    return speculation_pb2.DraftBudget(max_nodes=budget.max_nodes, max_depth=budget.max_depth)


def _update_to_proto(update: SessionUpdate) -> speculation_pb2.VerifierMessage:
    if isinstance(update, OpenSession):
        return speculation_pb2.VerifierMessage(
            open=speculation_pb2.Open(
                session_key=update.session_key,
                token_ids=update.token_ids,
                sampling=wire.sampling_to_proto(update.sampling),
                budget=_budget_to_proto(update.budget),
                stop_token_ids=update.stop_token_ids,
                features=update.features,
                rule=wire.rule_to_proto(update.rule),
                expansion=update.expansion,
            )
        )
    if isinstance(update, CommitTokens):
        return speculation_pb2.VerifierMessage(
            commit=speculation_pb2.Commit(
                session_key=update.session_key,
                from_len=update.from_len,
                token_ids=update.token_ids,
                budget=_budget_to_proto(update.budget),
                features=update.features,
            )
        )
    return speculation_pb2.VerifierMessage(
        close=speculation_pb2.Close(session_key=update.session_key, reason=update.reason)
    )
