"""The verifier's end of draft streams, over real sockets: a test says what the verifier says and reads what comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from specgrove.base_hash import EMPTY_HASH, extend_hash
from specgrove.errors import SpecgroveError
from specgrove.proto.v1 import speculation_pb2 as pb
from specgrove.proto.v1 import verifier_pb2_grpc
from specgrove.rpc import GrpcServer, ServicerContext
from specgrove.sampling.params import SamplingParams
from specgrove.tree import TokenTree
from specgrove.wire import sampling_to_proto, tree_from_proto
from support.tiny_models import VOCAB_SIZE

SERVICE = "specgrove.proto.v1.VerifierService"
TIMEOUT_S = 10.0


@dataclass(slots=True, eq=False)
class DraftStream:
    """One accepted stream."""

    hello: pb.Hello
    outgoing: asyncio.Queue[pb.VerifierMessage | None] = field(default_factory=lambda: asyncio.Queue(1000))
    incoming: asyncio.Queue[pb.DrafterMessage] = field(default_factory=lambda: asyncio.Queue(1000))
    is_ended: asyncio.Event = field(default_factory=asyncio.Event)

    def open(
        self,
        key: int,
        token_ids: Sequence[int],
        *,
        max_nodes: int = 8,
        max_depth: int = 4,
        sampling: SamplingParams = SamplingParams(temperature=0.0),
        stop_token_ids: Sequence[int] = (2,),
    ) -> None:
        self.send(
            open=pb.Open(
                session_key=key,
                token_ids=token_ids,
                sampling=sampling_to_proto(sampling),
                budget=pb.DraftBudget(max_nodes=max_nodes, max_depth=max_depth),
                stop_token_ids=stop_token_ids,
            )
        )

    def commit(
        self, key: int, from_len: int, token_ids: Sequence[int], *, max_nodes: int = 8, max_depth: int = 4
    ) -> None:
        budget = pb.DraftBudget(max_nodes=max_nodes, max_depth=max_depth)
        self.send(commit=pb.Commit(session_key=key, from_len=from_len, token_ids=token_ids, budget=budget))

    def close(self, key: int) -> None:
        self.send(close=pb.Close(session_key=key, reason="finished"))

    def send(self, **message: object) -> None:
        self.outgoing.put_nowait(pb.VerifierMessage(**message))

    def end(self) -> None:
        """End the stream in good order."""
        self.outgoing.put_nowait(None)

    async def answer(self, timeout_s: float = TIMEOUT_S) -> pb.DrafterMessage:
        async with asyncio.timeout(timeout_s):
            return await self.incoming.get()

    async def tree(self, timeout_s: float = TIMEOUT_S) -> pb.TokenTree:
        message = await self.answer(timeout_s)
        assert message.WhichOneof("message") == "tree", message
        return message.tree

    async def decline(self, timeout_s: float = TIMEOUT_S) -> pb.Decline:
        message = await self.answer(timeout_s)
        assert message.WhichOneof("message") == "decline", message
        return message.decline


class DraftVerifier(verifier_pb2_grpc.VerifierServiceServicer):
    """Accepts draft streams (or refuses them with `refusal`) on a port of its own."""

    def __init__(self, *, verifier_id: str = "verifier", vocab_size: int = 96, port: int = 0) -> None:
        self.verifier_id = verifier_id
        self.refusal: SpecgroveError | None = None
        self.num_hellos = 0
        self._vocab_size = vocab_size
        self._streams: asyncio.Queue[DraftStream] = asyncio.Queue(100)
        self._server = GrpcServer("127.0.0.1", port)
        self._server.add(self, verifier_pb2_grpc.add_VerifierServiceServicer_to_server, SERVICE)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.port}"

    @property
    def port(self) -> int:
        return self._server.port

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    async def stream(self, timeout_s: float = TIMEOUT_S) -> DraftStream:
        """The next stream that was accepted."""
        async with asyncio.timeout(timeout_s):
            return await self._streams.get()

    async def Speculate(
        self, request_iterator: AsyncIterator[pb.DrafterMessage], context: ServicerContext
    ) -> AsyncIterator[pb.VerifierMessage]:
        first = await anext(request_iterator)
        self.num_hellos += 1
        if self.refusal is not None:
            raise self.refusal
        stream = DraftStream(first.hello)
        yield pb.VerifierMessage(
            welcome=pb.Welcome(
                verifier_id=self.verifier_id,
                incarnation=f"{id(self)}",
                model="tiny",
                vocab_size=self._vocab_size,
                max_nodes=32,
                max_depth=8,
            )
        )
        self._streams.put_nowait(stream)
        reading = asyncio.create_task(self._read(request_iterator, stream))
        try:
            while (message := await stream.outgoing.get()) is not None:
                yield message
        finally:
            reading.cancel()
            stream.is_ended.set()

    async def _read(self, messages: AsyncIterator[pb.DrafterMessage], stream: DraftStream) -> None:
        async for message in messages:
            stream.incoming.put_nowait(message)
        stream.end()


def read_tree(message: pb.TokenTree, tokens: Sequence[int]) -> TokenTree:
    """The tree as a verifier would take it in under `tokens`."""
    assert message.base_len == len(tokens)
    assert message.base_hash == extend_hash(EMPTY_HASH, tokens)
    return tree_from_proto(message, root_token_id=tokens[-1], vocab_size=VOCAB_SIZE, max_nodes=8, max_depth=4)
