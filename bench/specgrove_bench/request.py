"""One request and its answer, timed where the client stands; the durations are defined as vLLM's bench defines them.

    sent        first chunk      chunk           last chunk
     |-- TTFT --|------- gap ------|----- gap -----|
                 1 token            3 tokens        2 tokens

* TTFT: from sending to the first chunk with a token.
* time per output token (TPOT): from the first chunk to the last, divided by the tokens after the first chunk.
  vLLM divides by all tokens but one; the two differ only where the first chunk brings several tokens, and there ours is
  the larger one: what came with the first chunk cost no time after it.
* inter-token latency, per chunk: the gaps between chunks (vLLM's ITL). Speculation makes fewer and longer gaps.
* inter-token latency, per token: every token of a chunk counts as its gap divided by the chunk's tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise


class AskFailed(Exception):
    """A request that got no complete answer; the message says why."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client is to send."""

    prompt: int  # its place among the prompts
    category: str
    token_ids: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    ignore_eos: bool = False
    speculation: bool = True


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens that came together."""

    at_s: float  # since the request was sent
    num_tokens: int


@dataclass(frozen=True, slots=True)
class SpeculationCounts:
    """What the verifier says of one generation."""

    num_steps: int
    num_drafts: int  # steps that verified a tree
    num_draft_tokens: int
    num_accepted_tokens: int
    accepted_per_depth: tuple[int, ...] = ()
    drafted_per_depth: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """`token_ids` is empty where a server tells only how many tokens came; `counts` is there if it tells them."""

    chunks: tuple[Chunk, ...]
    token_ids: tuple[int, ...] = ()
    counts: SpeculationCounts | None = None
    error: str = ""

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def last_s(self) -> float:
        return self.chunks[-1].at_s if self.chunks else 0.0

    @property
    def time_per_token_s(self) -> float | None:
        """None for an answer that came in one chunk."""
        num_later = self.num_tokens - self.chunks[0].num_tokens if self.chunks else 0
        return (self.last_s - self.chunks[0].at_s) / num_later if num_later else None

    def gaps_s(self) -> Iterator[float]:
        """Inter-token latency per chunk."""
        for before, chunk in pairwise(self.chunks):
            yield chunk.at_s - before.at_s

    def token_gaps_s(self) -> Iterator[float]:
        """Inter-token latency per token."""
        for before, chunk in pairwise(self.chunks):
            for _ in range(chunk.num_tokens):
                yield (chunk.at_s - before.at_s) / chunk.num_tokens


@dataclass(frozen=True, slots=True)
class Record:
    """A request within a load."""

    prompt: int
    category: str
    sent_s: float  # since the load began
    late_s: float  # how much later than it was due: 0 in a closed loop
    answer: Answer

    @property
    def is_ok(self) -> bool:
        return not self.answer.error and bool(self.answer.chunks)

    @property
    def ttft_s(self) -> float:
        """From when the request was due, so that a client that falls behind does not hide the wait."""
        return self.late_s + self.answer.chunks[0].at_s

    @property
    def end_to_end_s(self) -> float:
        return self.late_s + self.answer.last_s

    def meets(self, ttft_goal_s: float | None, tpot_goal_s: float | None) -> bool:
        """Whether the request counts for goodput. An answer of one chunk has no time per token and meets any."""
        if not self.is_ok:
            return False
        tpot_s = self.answer.time_per_token_s or 0.0
        return (ttft_goal_s is None or self.ttft_s <= ttft_goal_s) and (tpot_goal_s is None or tpot_s <= tpot_goal_s)

    def to_json(self) -> dict[str, object]:
        answer = self.answer
        counts = answer.counts
        return {
            "prompt": self.prompt,
            "sent_s": round(self.sent_s, 4),
            "late_s": round(self.late_s, 4),
            "num_tokens": answer.num_tokens,
            "chunks_ms": [[round(chunk.at_s * 1000, 1), chunk.num_tokens] for chunk in answer.chunks],
            **({"error": answer.error} if answer.error else {}),
            **({"num_steps": counts.num_steps, "num_drafts": counts.num_drafts} if counts else {}),
            **({"num_draft_tokens": counts.num_draft_tokens} if counts else {}),
            **({"num_accepted_tokens": counts.num_accepted_tokens} if counts else {}),
        }
