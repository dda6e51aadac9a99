"""What comes with a generation's tokens: how it ended, what the target thought, what speculation did. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest


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


def merged_stats(parts: Sequence[SpeculationStats]) -> SpeculationStats:
    """The account of several generations that ran at once: counts are sums, times those of the slowest."""
    merged = SpeculationStats(
        num_steps=sum(part.num_steps for part in parts),
        num_drafts=sum(part.num_drafts for part in parts),
        num_draft_tokens=sum(part.num_draft_tokens for part in parts),
        num_accepted_tokens=sum(part.num_accepted_tokens for part in parts),
        num_committed_tokens=sum(part.num_committed_tokens for part in parts),
        prefill_s=max(part.prefill_s for part in parts),
        decode_s=max(part.decode_s for part in parts),
    )
    merged.accepted_per_pos = _summed([part.accepted_per_pos for part in parts])
    merged.drafted_per_pos = _summed([part.drafted_per_pos for part in parts])
    return merged


def _summed(counts: Sequence[Sequence[int]]) -> list[int]:
    return [sum(at_depth) for at_depth in zip_longest(*counts, fillvalue=0)]


def _count_up_to(counts: list[int], depth: int) -> None:
    counts.extend([0] * (depth - len(counts)))
    for position in range(depth):
        counts[position] += 1
