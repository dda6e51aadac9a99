"""The draft stream as a client: Hello, Welcome, then Open / Commit / Close in and trees / declines out.

The only module of the drafter that sees generated messages. What comes from a verifier is checked here; a malformed
message costs its own session at most.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from specgrove.errors import InvalidInput, PeerUnavailable, ProtocolViolation
from specgrove.features import FeatureLayout, TargetFeatures
from specgrove.proto.v1 import speculation_pb2 as pb
from specgrove.proto.v1.verifier_pb2_grpc import VerifierServiceStub
from specgrove.rpc import AioRpcError, Channel, error_from_rpc, open_channel
from specgrove.sampling.params import SpeculationOptions
from specgrove.sampling.rules import Rule
from specgrove.wire import PROTOCOL_VERSION, rule_from_proto, sampling_from_proto, tree_to_proto
from specgrove_drafter.answers import Answer, Decline, DeclineReason, Draft
from specgrove_drafter.identity import DrafterIdentity, VerifierIdentity
from specgrove_drafter.inbox import Inbox
from specgrove_drafter.jobs import Budget
from specgrove_drafter.metrics import DrafterMetrics
from specgrove_drafter.mirror import Committed, Opened
from specgrove_drafter.outbox import Outbox

_log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 5.0
GOODBYE_TIMEOUT_S = 0.5
# Whatever a verifier asks for, a tree stays within these.
MAX_TREE_NODES = 1024
MAX_TREE_DEPTH = 64

_REASONS = {
    DeclineReason.NOTHING_TO_PROPOSE: pb.Decline.REASON_NOTHING_TO_PROPOSE,
    DeclineReason.NO_CAPACITY: pb.Decline.REASON_NO_CAPACITY,
    DeclineReason.LOST_PLACE: pb.Decline.REASON_LOST_PLACE,
}


OnWelcome = Callable[[VerifierIdentity], None]


class SpeculateClient:
    """Dials verifiers and keeps one draft stream with each."""

    def __init__(self, identity: DrafterIdentity, inbox: Inbox, metrics: DrafterMetrics) -> None:
        self._identity = identity
        self._inbox = inbox
        self._metrics = metrics

    async def speculate(self, address: str, on_welcome: OnWelcome) -> None:
        """Draft for the verifier at `address` until its stream ends; never returns normally.

        `on_welcome` is called once the verifier has accepted; what it raises ends the stream. Raises
        VocabularyMismatch or ProtocolViolation when the verifier refuses, PeerUnavailable when it cannot be reached
        or goes away. Cancelling ends the stream politely.
        """
        channel = open_channel(address)
        try:
            await self._run_stream(channel, on_welcome)
        except AioRpcError as error:
            raise error_from_rpc(error) from error
        finally:
            await channel.close()

    async def _run_stream(self, channel: Channel, on_welcome: OnWelcome) -> None:
        call = VerifierServiceStub(channel).Speculate()
        try:
            try:
                async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                    welcome = await self._shake_hands(call)
            except TimeoutError:
                raise PeerUnavailable(f"no Welcome within {HANDSHAKE_TIMEOUT_S:g} s") from None
            on_welcome(welcome)
            await self._serve(call, welcome)
        finally:
            call.cancel()

    async def _shake_hands(self, call: Any) -> VerifierIdentity:
        me = self._identity
        hello = pb.Hello(
            protocol_version=PROTOCOL_VERSION,
            drafter_id=me.drafter_id,
            incarnation=me.incarnation,
            vocab_hash=me.vocab_hash,
            models=me.members,
            max_sessions=me.max_sessions,
            feature_layers=me.features.layers,
        )
        await _write(call, pb.DrafterMessage(hello=hello))
        message = await _read(call)
        if message.WhichOneof("message") != "welcome":
            raise ProtocolViolation("the verifier's first message is not a Welcome")
        welcome = message.welcome
        if welcome.vocab_size < 1:
            raise ProtocolViolation("the verifier's Welcome names no vocab_size")
        return VerifierIdentity(
            welcome.verifier_id,
            welcome.incarnation,
            welcome.model,
            welcome.vocab_size,
            Budget(min(welcome.max_nodes, MAX_TREE_NODES), min(welcome.max_depth, MAX_TREE_DEPTH)),
        )

    async def _serve(self, call: Any, verifier: VerifierIdentity) -> None:
        loop = asyncio.get_running_loop()
        outbox = Outbox(max_answers=2 * self._identity.max_sessions)

        def deliver(answer: Answer) -> None:  # called by the engine's thread
            loop.call_soon_threadsafe(outbox.put, answer)

        stream_id = self._inbox.attach(deliver)
        reader = StreamReader(stream_id, verifier, self._inbox, self._metrics, outbox, self._identity.features)
        reading = asyncio.create_task(_read_all(call, reader), name=f"commits-from-{verifier.verifier_id}")
        writing = asyncio.create_task(_write_answers(call, outbox), name=f"answers-to-{verifier.verifier_id}")
        try:
            # Shielded: a cancelled read would cancel the call, and there would be nothing to say goodbye on.
            await asyncio.shield(reading)
        except asyncio.CancelledError:
            await _say_goodbye(call, reading)
            raise
        finally:
            self._inbox.detach(stream_id)
            for task in (reading, writing):
                task.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)


class StreamReader:
    """Takes one verifier's messages into its mirrors; refusals go to `outbox`."""

    def __init__(
        self,
        stream_id: int,
        verifier: VerifierIdentity,
        inbox: Inbox,
        metrics: DrafterMetrics,
        outbox: Outbox,
        features: FeatureLayout,
    ) -> None:
        self._stream_id = stream_id
        self._verifier = verifier
        self._inbox = inbox
        self._metrics = metrics
        self._outbox = outbox
        self._layout = features

    def handle(self, message: pb.VerifierMessage) -> None:
        """Never raises because of what a message says."""
        kind = message.WhichOneof("message")
        try:
            match kind:
                case "open":
                    self._open(message.open)
                case "commit":
                    self._commit(message.commit)
                case "close":
                    self._inbox.close_session(self._stream_id, message.close.session_key)
                case _:
                    raise InvalidInput(f"unexpected message {kind!r}")
        except InvalidInput as error:
            self._metrics.num_malformed.inc()
            _log.warning(
                "refused a message",
                extra={"verifier_id": self._verifier.verifier_id, "kind": kind, "reason": error.message},
            )

    def _open(self, message: pb.Open) -> None:
        try:
            opened = Opened(
                message.session_key,
                self._token_ids(message.token_ids, at_least=1),
                sampling_from_proto(message.sampling),
                self._budget(message.budget),
                frozenset(message.stop_token_ids),
                self._features(message.features, len(message.token_ids)),
                rule_from_proto(message.rule) or Rule.COUPLED,
                SpeculationOptions(expansion=tuple(message.expansion)).expansion,  # checks it
            )
        except InvalidInput:
            self._inbox.close_session(self._stream_id, message.session_key)
            self._refuse(Decline(message.session_key, len(message.token_ids), DeclineReason.NOTHING_TO_PROPOSE))
            raise
        self._refuse(self._inbox.open(self._stream_id, opened))

    def _commit(self, message: pb.Commit) -> None:
        try:
            committed = Committed(
                message.session_key,
                message.from_len,
                self._token_ids(message.token_ids, at_least=0),
                self._budget(message.budget),
                self._features(message.features, message.from_len + len(message.token_ids)),
            )
        except InvalidInput:
            # The mirror cannot follow any more; a fresh Open can.
            self._inbox.close_session(self._stream_id, message.session_key)
            new_len = min(message.from_len + len(message.token_ids), 2**32 - 1)
            self._refuse(Decline(message.session_key, new_len, DeclineReason.LOST_PLACE))
            raise
        decline, accepted = self._inbox.commit(self._stream_id, committed)
        self._metrics.nodes_accepted(accepted)
        self._refuse(decline)

    def _refuse(self, decline: Decline | None) -> None:
        if decline is not None:
            self._metrics.declined(decline.reason)
            self._outbox.put(decline)

    def _token_ids(self, token_ids: Any, *, at_least: int) -> list[int]:
        if len(token_ids) < at_least:
            raise InvalidInput("no tokens", field="token_ids")
        if token_ids and max(token_ids) >= self._verifier.vocab_size:
            raise InvalidInput(
                f"token id {max(token_ids)} is outside the vocabulary of {self._verifier.vocab_size}", field="token_ids"
            )
        return list(token_ids)

    def _budget(self, message: pb.DraftBudget) -> Budget:
        limit = self._verifier.max_budget
        return Budget(message.max_nodes, message.max_depth).capped(limit.max_nodes, limit.max_depth)

    def _features(self, values: bytes, base_len: int) -> TargetFeatures | None:
        if values and len(values) == self._layout.num_bytes:
            return TargetFeatures(base_len, values)
        if values:  # not what was asked for: drafts are made without
            self._metrics.num_refused_features.inc()
        return None


async def _read(call: Any) -> pb.VerifierMessage:
    """The next message. Raises AioRpcError when the stream broke, PeerUnavailable when the verifier ended it."""
    message = await call.read()
    if not isinstance(message, pb.VerifierMessage):  # grpc.aio.EOF
        raise PeerUnavailable("the verifier ended the stream")
    return message


async def _read_all(call: Any, reader: StreamReader) -> None:
    while True:
        reader.handle(await _read(call))


async def _write(call: Any, message: pb.DrafterMessage) -> None:
    """Send one message; a stream that broke meanwhile raises the status it ended with."""
    try:
        await call.write(message)
    except asyncio.InvalidStateError:  # grpc.aio's word for "this call is over"
        await _read(call)
        raise PeerUnavailable("the verifier ended the stream") from None


async def _write_answers(call: Any, outbox: Outbox) -> None:
    try:
        while True:
            await _write(call, _to_message(await outbox.get()))
    except (AioRpcError, PeerUnavailable):
        return  # the reader sees the same end and reports it


async def _say_goodbye(call: Any, reading: asyncio.Task[None]) -> None:
    """Half-close the stream and give the verifier a moment to end it, so that it sees a farewell and not a failure."""
    try:
        async with asyncio.timeout(GOODBYE_TIMEOUT_S):
            await call.done_writing()
            await asyncio.wait({reading})
    except (TimeoutError, AioRpcError, asyncio.InvalidStateError):
        pass


def _to_message(answer: Answer) -> pb.DrafterMessage:
    if isinstance(answer, Draft):
        tree = tree_to_proto(
            answer.session_key, answer.base_len, answer.base_hash, answer.tree, answer.draft_s, answer.laws
        )
        return pb.DrafterMessage(tree=tree)
    return pb.DrafterMessage(
        decline=pb.Decline(
            session_key=answer.session_key, base_len=min(answer.base_len, 2**32 - 1), reason=_REASONS[answer.reason]
        )
    )
