"""What comes with a generation's tokens: how it ended, what the target thought, what speculation did. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"  # end-of-sequence, a stop token or a stop string
    LENGTH = "length"  # max_tokens, or the end of the context


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """What the target thought of one token, by its raw logits (`specgrove.sampling.logprobs`)."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob) of the likeliest, in order; as many as were asked for


@dataclass(slots=True)
class SpeculationStats:
    """The running account of one generation; the fields are those of the message of the same name."""

    num_steps: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_committed_tokens: int = 0
    accepted_per_pos: list[int] = field(default_factory=list)
    drafted_per_pos: list[int] = field(default_factory=list)
    prefill_s: float = 0.0
    decode_s: float = 0.0

    def record_step(self, *, num_draft_nodes: int, tree_depth: int, num_accepted: int, num_committed: int) -> None:
        """Add one step. `num_accepted` counts the draft tokens that became output (stop conditions may cut a path)."""
        self.num_steps += 1
        self.num_committed_tokens += num_committed
        if num_draft_nodes == 0:
            return
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_nodes
        self.num_accepted_tokens += num_accepted
        _count_up_to(self.drafted_per_pos, tree_depth)
        _count_up_to(self.accepted_per_pos, num_accepted)


def _count_up_to(counts: list[int], depth: int) -> None:
    counts.extend([0] * (depth - len(counts)))
    for position in range(depth):
        counts[position] += 1
