"""Who is measured: a mode of this project or another engine, with the client that asks it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from specgrove_bench.plan import Competitor
from specgrove_bench.request import Answer, Ask


class ClosableClient(Protocol):
    async def ask(self, ask: Ask) -> Answer: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Contender:
    """`competitor` is its part in the plan; `page_url` names the verifier's metrics page of a mode of ours."""

    competitor: Competitor
    title: str
    client: ClosableClient
    speculation: bool = False
    page_url: str | None = None

    @property
    def name(self) -> str:
        return self.competitor.name

    @property
    def is_ours(self) -> bool:
        """Modes of ours must all give the same tokens; other engines compute with other roundings."""
        return self.page_url is not None


@dataclass(frozen=True, slots=True)
class Pair:
    """The models of a run."""

    target: Path
    ssms: tuple[Path, ...]
    gguf: Path  # may be missing
