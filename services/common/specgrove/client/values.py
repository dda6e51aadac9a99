"""What a client gets: whole answers, their pieces, models and tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from specgrove.errors import PeerUnavailable
from specgrove.outcome import FinishReason, SpeculationStats


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens read and written; stop tokens count although they have no text."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """What became final since the chunk before. The last one alone says why the answer ended and what it took."""

    request_id: str
    session_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    stats: SpeculationStats | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. The same request with `seed` gives the same tokens again."""

    request_id: str
    session_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    stats: SpeculationStats
    seed: int


@dataclass(frozen=True, slots=True)
class Model:
    """A served model; its limits are 0 until the gateway has heard from a verifier."""

    model_id: str
    max_context_len: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """The ids of a text, and how the vocabulary spells them."""

    token_ids: tuple[int, ...]
    token_strs: tuple[str, ...]


@dataclass(slots=True)
class Collected:
    """The chunks of one stream so far."""

    chunks: list[Chunk] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return bool(self.chunks) and self.chunks[-1].finish_reason is not None

    def answer(self) -> Answer:
        """The answer that the chunks make. Raises PeerUnavailable if the last one never came."""
        last = self.chunks[-1] if self.chunks else None
        if last is None or last.finish_reason is None or last.usage is None or last.stats is None or last.seed is None:
            raise PeerUnavailable("the answer ended without a finish reason; ask again")
        return Answer(
            request_id=last.request_id,
            session_id=last.session_id,
            text="".join(chunk.text for chunk in self.chunks),
            token_ids=tuple(token_id for chunk in self.chunks for token_id in chunk.token_ids),
            finish_reason=last.finish_reason,
            usage=last.usage,
            stats=last.stats,
            seed=last.seed,
        )
