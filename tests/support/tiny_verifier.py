"""The verifier's service on a tiny model behind a real socket, and a drafter that a test plays by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from specgrove.base_hash import EMPTY_HASH, extend_hash
from specgrove.proto.v1 import generation_pb2, speculation_pb2, verifier_pb2, verifier_pb2_grpc
from specgrove.rpc import GrpcServer, open_channel
from specgrove.runtime.loading import LoadedModel
from specgrove.tree import TokenTree
from specgrove.wire import tree_to_proto
from specgrove_verifier.assembly import build_admission, build_engine, context_len, load_limits, read_tokenizer
from specgrove_verifier.config import VerifierConfig
from specgrove_verifier.engine import Engine
from specgrove_verifier.mailbox import DraftBudget
from specgrove_verifier.service import Identity, VerifierService
from support.tiny_models import text_of
from support.waiting import until

SERVICE_NAME = "specgrove.proto.v1.VerifierService"
MODEL_NAME = "tiny"


def request_message(
    prompt: Sequence[int],
    max_tokens: int,
    *,
    session_id: str = "session",
    epoch: int = 1,
    committed_token_ids: Sequence[int] = (),
    model: str = "",
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    is_speculative: bool = True,
    rule: int = 0,
    expansion: Sequence[int] = (),
    priority: int = 0,
    **stop: Any,
) -> verifier_pb2.VerifierGenerateRequest:
    return verifier_pb2.VerifierGenerateRequest(
        session_id=session_id,
        epoch=epoch,
        request_id=f"request-{session_id}",
        prompt_token_ids=prompt,
        committed_token_ids=committed_token_ids,
        sampling=generation_pb2.SamplingParams(temperature=temperature, top_p=top_p, seed=seed),
        stop=generation_pb2.StopConditions(max_tokens=max_tokens, **{"ignore_eos": True, **stop}),
        speculation=generation_pb2.SpeculationOptions(
            disabled=not is_speculative,
            rule=rule,  # type: ignore[arg-type]  # as protobuf hands on numbers that it does not know
            expansion=expansion,
        ),
        model=model,
        priority=priority,
    )


@dataclass(slots=True)
class Collected:
    """A whole answer."""

    messages: list[verifier_pb2.VerifierGenerateResponse]

    @property
    def token_ids(self) -> list[int]:
        return [token_id for message in self.messages for token_id in message.token_ids]

    @property
    def last(self) -> verifier_pb2.VerifierGenerateResponse:
        return self.messages[-1]


@dataclass(slots=True)
class TinyVerifier:
    """A verifier that listens, and a look inside."""

    engine: Engine
    service: VerifierService
    registry: CollectorRegistry
    vocab_hash: str
    stub: verifier_pb2_grpc.VerifierServiceStub
    address: str
    server: GrpcServer

    @property
    def num_forwards(self) -> int:
        return self.engine._forward.num_forwards

    text_of = staticmethod(text_of)

    async def generate(self, request: verifier_pb2.VerifierGenerateRequest, timeout: float = 30.0) -> Collected:
        return Collected([message async for message in self.stub.Generate(request, timeout=timeout)])

    def sample(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        await until(condition, timeout_s)

    async def assert_empty(self) -> None:
        """No session, no KV block and no call is left, or will be within moments."""
        cache = self.engine._cache
        await self.until(
            lambda: (
                self.service._load.num_generations == self.service._load.num_tokens == 0
                and not self.engine._generations
                and cache.allocator.num_free == cache.num_blocks
            )
        )
        assert not self.service._by_session


@asynccontextmanager
async def running_verifier(
    loaded: LoadedModel, verifier_id: str = "tiny-verifier", **settings: Any
) -> AsyncIterator[TinyVerifier]:
    """The service as its `__main__` builds it, without Redis and without a metrics port."""
    config = VerifierConfig(
        model=loaded.source,
        **{
            "kv_tokens": 2048,
            "block_size": 4,
            "budget": "fixed",
            "draft_wait": "fixed",
            "max_draft_wait_ms": 2_000.0,
            **settings,
        },
    )
    registry = CollectorRegistry()
    target = read_tokenizer(Path(loaded.source), loaded.vocab_size)
    engine = build_engine(config, loaded, registry)
    identity = Identity(
        verifier_id=verifier_id,
        incarnation="1",
        model_name=MODEL_NAME,
        vocab_hash=target.vocab_hash,
        vocab_size=loaded.vocab_size,
        max_context_len=context_len(config, loaded),
        max_sessions=config.max_sessions,
        load_limits=load_limits(config),
        limits=DraftBudget(config.max_nodes, config.max_depth),
    )
    service = VerifierService(engine, build_admission(config, loaded, target, MODEL_NAME), identity)
    server = GrpcServer("127.0.0.1", 0)
    server.add(service, verifier_pb2_grpc.add_VerifierServiceServicer_to_server, SERVICE_NAME)
    engine.start()
    port = await server.start()
    channel = open_channel(f"127.0.0.1:{port}")
    try:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        yield TinyVerifier(engine, service, registry, target.vocab_hash, stub, f"127.0.0.1:{port}", server)
    finally:
        await channel.close()
        await server.stop(0.0)
        await asyncio.to_thread(engine.stop)


@dataclass(slots=True)
class HeldSession:
    """What a drafter was told of one session."""

    opening: speculation_pb2.Open
    token_ids: list[int]
    max_nodes: int
    max_depth: int
    features: bytes = b""  # of the newest base

    def tree_message(self, tree: TokenTree) -> speculation_pb2.TokenTree:
        base_hash = extend_hash(EMPTY_HASH, self.token_ids)
        return tree_to_proto(self.opening.session_key, len(self.token_ids), base_hash, tree)


Reply = Callable[[HeldSession], "speculation_pb2.DrafterMessage | Sequence[speculation_pb2.DrafterMessage] | None"]


@dataclass(slots=True)
class ScriptedDrafter:
    """A drafter over the wire that answers each Open and Commit with `reply`."""

    verifier: TinyVerifier
    reply: Reply = lambda session: None
    sessions: dict[int, HeldSession] = field(default_factory=dict)
    received: list[speculation_pb2.VerifierMessage] = field(default_factory=list)
    welcome: speculation_pb2.Welcome | None = None
    call: Any = None

    async def connect(self, *, max_sessions: int = 8, **hello: Any) -> speculation_pb2.Welcome:
        """Say Hello and return the Welcome; raises the refusal."""
        self.call = self.verifier.stub.Speculate()
        fields = {
            "protocol_version": 1,
            "drafter_id": "scripted",
            "vocab_hash": self.verifier.vocab_hash,
            "max_sessions": max_sessions,
            **hello,
        }
        await self.send(speculation_pb2.DrafterMessage(hello=speculation_pb2.Hello(**fields)))
        async with asyncio.timeout(10):
            first = await self.call.read()
        return first.welcome

    async def send(self, *messages: speculation_pb2.DrafterMessage) -> None:
        for message in messages:
            await self.call.write(message)

    async def serve(self) -> None:
        """Mirror and reply until the stream ends; raises the status it ended with."""
        while isinstance(message := await self.call.read(), speculation_pb2.VerifierMessage):
            self.received.append(message)
            match message.WhichOneof("message"):
                case "open":
                    budget = message.open.budget
                    session = HeldSession(
                        message.open,
                        list(message.open.token_ids),
                        budget.max_nodes,
                        budget.max_depth,
                        message.open.features,
                    )
                    self.sessions[message.open.session_key] = session
                    await self._reply(session)
                case "commit":
                    held = self.sessions[message.commit.session_key]
                    assert message.commit.from_len == len(held.token_ids)
                    held.token_ids += message.commit.token_ids
                    held.max_nodes = message.commit.budget.max_nodes
                    held.max_depth = message.commit.budget.max_depth
                    held.features = message.commit.features
                    await self._reply(held)
                case "close":
                    self.sessions.pop(message.close.session_key, None)

    async def _reply(self, session: HeldSession) -> None:
        answer = self.reply(session)
        if answer is not None:
            await self.send(*([answer] if isinstance(answer, speculation_pb2.DrafterMessage) else answer))


@asynccontextmanager
async def drafting(verifier: TinyVerifier, reply: Reply, **hello: Any) -> AsyncIterator[ScriptedDrafter]:
    """A connected drafter that replies in the background."""
    drafter = ScriptedDrafter(verifier, reply)
    drafter.welcome = await drafter.connect(**hello)
    serving = asyncio.create_task(drafter.serve())
    try:
        yield drafter
    finally:
        drafter.call.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def tree_message(session: HeldSession, paths: Sequence[Sequence[int]]) -> speculation_pb2.DrafterMessage:
    """A tree of `paths` under what the session holds."""
    tree = TokenTree.from_paths(session.token_ids[-1], paths)
    return speculation_pb2.DrafterMessage(tree=session.tree_message(tree))
