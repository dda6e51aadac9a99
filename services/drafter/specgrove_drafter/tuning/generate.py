"""The target's own continuations: a batch that stays full, with the target's next-token law at every position.

Every slot plays one plan: forced tokens, then (unless the plan brought it) a user turn that the target writes at
temperature 1, the template's bridge, the answer, perhaps a second round. A finished document hands its slot to the
next plan. What a document says depends on the seed and its own number, not on its neighbours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specgrove_drafter.tuning.prompts import ChatFrame, DocumentPlan
from specgrove_drafter.tuning.shards import NUM_TOP, Document, Role
from specgrove_drafter.tuning.slots import SlotCache, run_rows

NUM_CANDIDATES = 64  # sampling looks at the likeliest 64 tokens; the rest of the tail is noise in small models
USER_TOP_P = 0.95
BULK_PREFILL = 16  # longer forced texts are run in one forward instead of a token a step
LOOP_TOKENS, LOOP_PERIODS = 36, range(1, 25)


@dataclass(slots=True)
class Playing:
    """One document on its way; lists grow by one a step."""

    plan: DocumentPlan
    chance: torch.Generator
    tokens: list[int]
    pending: deque[int]
    phase: Role
    turns_left: int
    num_written: int = 0
    roles: list[int] = field(default_factory=list)
    rows: list[tuple[Tensor, Tensor, Tensor, Tensor]] = field(default_factory=list)
    num_unseen: int = 0

    @classmethod
    def start(cls, plan: DocumentPlan, seed: int) -> Playing:
        chance = torch.Generator().manual_seed((seed * 1_000_003 + plan.document_id) % 2**62)
        phase = Role.USER if plan.limits.max_user else Role.ANSWER
        return cls(plan, chance, list(plan.opening), deque(plan.forced), phase, plan.num_turns)

    def finish(self) -> Document:
        """The document; the bulk positions carry an empty law."""
        num_rows = len(self.roles)
        columns = []
        for kept in zip(*self.rows, strict=True):
            column = torch.zeros(num_rows, kept[0].shape[0], dtype=kept[0].dtype)
            column[self.num_unseen :] = torch.stack(kept)
            columns.append(column)
        tokens = torch.tensor(self.tokens[:num_rows], dtype=torch.int32)
        return Document(self.plan.document_id, tokens, torch.tensor(self.roles, dtype=torch.uint8), *columns)


def is_looping(tokens: list[int], num_written: int) -> bool:
    """Whether the last 36 written tokens repeat with a period of at most 24; small targets do get stuck."""
    if num_written < LOOP_TOKENS + LOOP_PERIODS[-1]:
        return False
    tail = tokens[-LOOP_TOKENS:]
    end = len(tokens)
    return any(tail == tokens[end - LOOP_TOKENS - p : end - p] for p in LOOP_PERIODS)


def draw(logprobs: list[float], temperature: float, top_p: float, chance: torch.Generator) -> int:
    """Index into a descending list of log-probabilities, drawn at `temperature` from the nucleus of `top_p`."""
    law = (torch.tensor(logprobs, dtype=torch.float64) / temperature).softmax(0)
    mass = law.cumsum(0)
    nucleus = int((mass < top_p).sum()) + 1
    point = float(torch.rand((), generator=chance, dtype=torch.float64)) * float(mass[min(nucleus, len(mass)) - 1])
    return min(int((mass < point).sum()), nucleus - 1, len(logprobs) - 1)


def choose_next(playing: Playing, frame: ChatFrame, ids: list[int], logprobs: list[float]) -> bool:
    """Append the next token and say whether the document goes on; `ids` and `logprobs` are the 64 candidates."""
    plan = playing.plan
    if playing.pending:
        playing.tokens.append(playing.pending.popleft())
        playing.roles.append(Role.FORCED)
        return True
    playing.roles.append(playing.phase)
    if playing.phase is Role.USER:
        token = ids[draw(logprobs, 1.0, USER_TOP_P, playing.chance)]
        playing.num_written += 1
        if token in (frame.to_answer[0], frame.end_id) or playing.num_written >= plan.limits.max_user:
            if token not in (frame.to_answer[0], frame.end_id):
                playing.roles[-1] = Role.FORCED  # the limit ended the turn, not the target
            playing.tokens.append(frame.to_answer[0])
            playing.pending.extend(frame.to_answer[1:])
            playing.phase, playing.num_written = Role.ANSWER, 0
        else:
            playing.tokens.append(token)
        return True
    greedy = plan.temperature == 0
    token = ids[0] if greedy else ids[draw(logprobs, plan.temperature, 1.0, playing.chance)]
    playing.tokens.append(token)
    playing.num_written += 1
    if token == frame.end_id:
        playing.turns_left -= 1
        playing.pending.extend(frame.to_user)
        playing.phase, playing.num_written = Role.USER, 0
        return playing.turns_left > 0
    return playing.num_written < plan.limits.max_answer and not is_looping(playing.tokens, playing.num_written)


class Generator:
    """Plays plans on a fixed number of slots; one forward a step."""

    def __init__(
        self,
        model: Any,
        frame: ChatFrame,
        seed: int,
        num_slots: int,
        capacity: int,
        feature_layers: Sequence[int] = (),
    ) -> None:
        self.model, self.frame, self.seed = model, frame, seed
        self.capacity = capacity
        self.feature_layers = tuple(feature_layers)
        # One slot more than documents: the workbench on which openings and long prompts are run in bulk.
        self.cache = SlotCache.for_model(model, num_slots + 1, capacity)
        self.bench = num_slots
        self.slots: list[Playing | None] = [None] * num_slots
        self.openings: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}

    @torch.inference_mode()
    def play(self, plans: Iterator[DocumentPlan]) -> Iterator[Document]:
        """Finished documents as they finish; ends when `plans` does and every slot is empty."""
        while True:
            for slot, playing in enumerate(self.slots):
                if playing is None and (plan := next(plans, None)) is not None:
                    self._admit(slot, plan)
            if not any(self.slots):
                return
            yield from self._step()

    def _admit(self, slot: int, plan: DocumentPlan) -> None:
        """Put a plan into a slot with everything but its newest token already in the cache."""
        playing = Playing.start(plan, self.seed)
        prefix = plan.opening[:-1]
        if len(plan.forced) > BULK_PREFILL:
            playing.tokens.extend(playing.pending)
            playing.pending.clear()
            prefix = tuple(playing.tokens[:-1])
        copies = self.openings.get(prefix)
        if not prefix:
            self.cache.lengths[slot] = 0
        elif copies is None:
            self.cache.lengths[self.bench] = 0
            row = torch.tensor([prefix], device=self.cache.lengths.device)
            run_rows(self.model, self.cache, slice(self.bench, self.bench + 1), row)
            copies = self.cache.snapshot(self.bench)
            if prefix == plan.opening[:-1]:
                self.openings[prefix] = copies
        if copies is not None:
            self.cache.restore(slot, copies)
        playing.num_unseen = len(prefix)
        playing.roles = [Role.UNSEEN] * len(prefix)
        self.slots[slot] = playing

    def _step(self) -> Iterator[Document]:
        """One token for every slot; yields the documents that ended with it."""
        device = self.cache.lengths.device
        for slot, playing in enumerate(self.slots):
            if playing is None:
                self.cache.lengths[slot] = 0  # an empty slot still takes part; keep it short
        newest = [playing.tokens[-1] if playing else 0 for playing in self.slots]
        tokens = torch.tensor(newest, device=device)[:, None]
        rows = run_rows(self.model, self.cache, slice(0, len(self.slots)), tokens, self.feature_layers)
        states = rows.final[:, 0]
        logits = self.model.lm_head(states).float()
        top = logits.topk(min(NUM_CANDIDATES, logits.shape[1]))
        logprobs = (top.values - logits.logsumexp(-1, keepdim=True)).cpu()
        ids = top.indices.cpu()
        kept_ids, kept_logprobs, kept_states = ids[:, :NUM_TOP].int(), logprobs[:, :NUM_TOP].half(), states.half().cpu()
        kept_features = rows.features[:, 0].half().cpu()
        id_lists, logprob_lists = ids.tolist(), logprobs.tolist()
        for slot, playing in enumerate(self.slots):
            if playing is None:
                continue
            playing.rows.append((kept_ids[slot], kept_logprobs[slot], kept_states[slot], kept_features[slot]))
            goes_on = choose_next(playing, self.frame, id_lists[slot], logprob_lists[slot])
            if not goes_on or len(playing.tokens) >= self.capacity:
                self.slots[slot] = None
                yield playing.finish()
