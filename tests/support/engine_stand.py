"""A whole engine in this process, on a tiny model, with drafters that live behind its own link protocol."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from prometheus_client import CollectorRegistry

from specgrove.base_hash import EMPTY_HASH, extend_hash
from specgrove.draft import Draft
from specgrove.outcome import FinishReason, SpeculationStats, TokenLogprobs
from specgrove.runtime.loading import LoadedModel
from specgrove.tree import TokenTree, TreeBuilder
from specgrove_verifier.admission import Admission
from specgrove_verifier.assembly import build_admission, build_engine, read_tokenizer
from specgrove_verifier.config import VerifierConfig
from specgrove_verifier.drafter_pool import CloseSession, CommitTokens, Drafter, OpenSession, SessionUpdate
from specgrove_verifier.engine import Engine
from specgrove_verifier.generation import Generation, GenerationRequest, StepOutput
from specgrove_verifier.mailbox import DraftBudget
from support.generation_requests import GREEDY as GREEDY
from support.generation_requests import make_request

TIMEOUT_S = 30.0


@dataclass(slots=True)
class Answer:
    """All that a generation said."""

    steps: list[tuple[int, ...]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_string: str = ""
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        return [token_id for step in self.steps for token_id in step]


class Running:
    """A submitted generation and its listener."""

    def __init__(self, stand: Stand, request: GenerationRequest) -> None:
        self._outputs: queue.Queue[StepOutput] = queue.Queue()
        self._answer = Answer()
        self.generation: Generation
        self.generation, finished = stand.admission.make(request, self._outputs.put)
        if finished is not None:
            self._outputs.put(finished)
        else:
            stand.engine.submit(self.generation)

    def next_step(self, timeout_s: float = TIMEOUT_S) -> StepOutput:
        """The next output; an error is raised."""
        output = self._outputs.get(timeout=timeout_s)
        if output.error is not None:
            raise output.error
        self._answer.logprobs += output.logprobs
        self._answer.prompt_logprobs += output.prompt_logprobs
        if output.token_ids:
            self._answer.steps.append(output.token_ids)
        if output.finish_reason is not None:
            self._answer.finish_reason = output.finish_reason
            self._answer.stop_string = output.stop_string
            assert output.stats is not None
            self._answer.stats = output.stats
        return output

    def answer(self) -> Answer:
        """Everything, once the last output has come."""
        while self._answer.finish_reason is None:
            self.next_step()
        return self._answer


@dataclass(slots=True)
class Stand:
    """An engine that runs, and what a test wants to look at."""

    engine: Engine
    admission: Admission
    registry: CollectorRegistry
    broke: threading.Event

    @property
    def cache(self) -> Any:
        return self.engine._cache

    @property
    def num_forwards(self) -> int:
        return self.engine._forward.num_forwards

    @property
    def num_preemptions(self) -> int:
        return self.engine._scheduler.placements.num_preemptions

    def start(self, prompt: Sequence[int], max_tokens: int = 24, **settings: Any) -> Running:
        return self.submit(make_request(prompt, max_tokens, **settings))

    def submit(self, request: GenerationRequest) -> Running:
        self.admission.check(request, "")
        return Running(self, request)

    def generate(self, prompt: Sequence[int], max_tokens: int = 24, **settings: Any) -> Answer:
        return self.start(prompt, max_tokens, **settings).answer()

    def attach(self, *drafters: InProcessDrafter, max_sessions: int = 64) -> None:
        for drafter in drafters:
            drafter.engine = self.engine
            name, layers = f"drafter-{drafter.number}", drafter.feature_layers
            self.engine.attach(Drafter(drafter.number, name, max_sessions, drafter, feature_layers=layers))

    def sample(self, name: str, **labels: str) -> float:
        """The value of a metric, 0 while it has none."""
        return self.registry.get_sample_value(name, labels) or 0.0

    def settle(self) -> None:
        """Return once the engine has done everything it was told so far."""
        done = threading.Event()
        self.engine._inbox.command(done.set)
        assert done.wait(TIMEOUT_S)

    def until(self, condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "the condition never came true"
            time.sleep(0.002)

    def assert_empty(self) -> None:
        """No session, no block, no mirror is left."""
        self.settle()
        assert self.engine.num_running == self.engine.num_waiting == 0
        assert self.cache.allocator.num_free == self.cache.num_blocks
        assert not self.engine._generations
        assert all(not drafter.sessions for drafter in self.engine._pool._drafters.values())


@contextmanager
def running_stand(loaded: LoadedModel, *drafters: InProcessDrafter, **settings: Any) -> Iterator[Stand]:
    """An engine over `loaded`; the wait for drafts is long, because the drafters here answer at once."""
    config = VerifierConfig(
        model=loaded.source,
        **{
            "kv_tokens": 1024,
            "block_size": 4,
            "budget": "fixed",
            "draft_wait": "fixed",
            "max_draft_wait_ms": 10_000.0,
            **settings,
        },
    )
    registry, broke = CollectorRegistry(), threading.Event()
    target = read_tokenizer(Path(loaded.source), loaded.vocab_size)
    engine = build_engine(config, loaded, registry, broke.set)
    stand = Stand(engine, build_admission(config, loaded, target, "tiny"), registry, broke)
    stand.attach(*drafters)
    engine.start()
    try:
        yield stand
    finally:
        engine.stop()


@dataclass(slots=True)
class Mirror:
    """What a drafter was told of a session."""

    opening: OpenSession
    token_ids: list[int]
    budget: DraftBudget

    @property
    def key(self) -> int:
        return self.opening.session_key

    def draft(self, tree: TokenTree) -> Draft:
        """`tree` under this mirror's base."""
        return Draft(
            self.key,
            len(self.token_ids),
            extend_hash(EMPTY_HASH, self.token_ids),
            tree.token_ids[1:],
            tree.parents[1:],
            tree.members[1:],
        )


Propose = Callable[[Mirror], TokenTree | None]


@dataclass(slots=True)
class InProcessDrafter:
    """Answers every opening and commit with `propose` at once, on the engine's own thread: no race, no clock.

    `propose` None, or a tree of None, stays silent. `respond`, if given, is called instead and does what it likes.
    """

    propose: Propose = lambda mirror: None
    number: int = 1
    respond: Callable[[InProcessDrafter, Mirror], None] | None = None
    feature_layers: tuple[int, ...] = ()
    engine: Engine | None = None
    mirrors: dict[int, Mirror] = field(default_factory=dict)
    updates: list[SessionUpdate] = field(default_factory=list)
    closed: list[CloseSession] = field(default_factory=list)

    def post(self, updates: Sequence[SessionUpdate]) -> None:
        for update in updates:
            self.updates.append(update)
            match update:
                case OpenSession():
                    self._answer(Mirror(update, list(update.token_ids), update.budget))
                case CommitTokens():
                    mirror = self.mirrors[update.session_key]
                    assert update.from_len == len(mirror.token_ids), "the commits have a hole"
                    mirror.token_ids += update.token_ids
                    mirror.budget = update.budget
                    self._answer(mirror)
                case CloseSession():
                    self.closed.append(update)
                    self.mirrors.pop(update.session_key, None)

    def send(self, draft: Draft) -> None:
        assert self.engine is not None
        self.engine.offer_draft(self.number, draft)

    def decline(self, mirror: Mirror, *, lost_place: bool = False, no_room: bool = False) -> None:
        assert self.engine is not None
        self.engine.decline_draft(
            self.number, mirror.key, len(mirror.token_ids), lost_place=lost_place, no_room=no_room
        )

    def _answer(self, mirror: Mirror) -> None:
        self.mirrors[mirror.key] = mirror
        if self.respond is not None:
            self.respond(self, mirror)
            return
        if mirror.budget.max_nodes == 0:
            return
        tree = self.propose(mirror)
        if tree is not None:
            self.send(mirror.draft(tree))


def random_trees(vocab_size: int, seed: int = 0) -> Propose:
    """Trees that fill the budget with tokens drawn without looking."""
    random = Random(seed)

    def propose(mirror: Mirror) -> TokenTree:
        builder = TreeBuilder(mirror.token_ids[-1])
        for _ in range(mirror.budget.max_nodes):
            shallow = [node for node in range(builder.num_nodes) if builder.depths[node] < mirror.budget.max_depth]
            builder.add(random.choice(shallow), random.randrange(vocab_size))
        return builder.build()

    return propose


def knowing_trees(truths: Sequence[Sequence[int]], *, right_len: int = 99, seed: int = 0) -> Propose:
    """Trees that hold the true continuation for `right_len` tokens, then a wrong one, among wrong siblings.

    `truths` are whole sequences (prompt and output); the mirror's is found by what it begins with.
    """
    random = Random(seed)

    def propose(mirror: Mirror) -> TokenTree:
        known = len(mirror.token_ids)
        truth = next((list(ids) for ids in truths if list(ids[:known]) == mirror.token_ids), None)
        assert truth is not None, "the mirror has tokens that the true sequence has not"
        builder = TreeBuilder(truth[known - 1])
        node = 0
        for depth, token_id in enumerate(truth[known : known + mirror.budget.max_depth]):
            if builder.num_nodes > mirror.budget.max_nodes:
                break
            node = builder.add(node, token_id if depth < right_len else token_id + 1)
            if random.random() < 0.5 and builder.num_nodes <= mirror.budget.max_nodes:
                builder.add(builder.parents[node], (token_id + 7) % 90)
        return builder.build()

    return propose
