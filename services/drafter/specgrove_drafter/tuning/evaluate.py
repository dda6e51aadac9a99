"""What a pool can do after each of its SSMs, on held-out own text and on the answers to the evaluation prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from specgrove_drafter.tuning.agreement import Agreement, answer_ranks, summarise
from specgrove_drafter.tuning.boost import any_top
from specgrove_drafter.tuning.progress import say
from specgrove_drafter.tuning.shards import Document
from specgrove_drafter.tuning.vocabulary import DraftVocabulary


@dataclass(frozen=True, slots=True)
class PoolSoFar:
    """How often SSMs 1 .. i of a pool are right on one text."""

    newest: Agreement  # SSM i alone
    mean: Agreement  # the mean of all their laws
    any_top: tuple[float, ...]  # [5]: the target's choice is within the first k of some SSM, at depth 1


@dataclass(slots=True)
class PoolEvaluation:
    """The measures of a pool that grows; each SSM's own are made once."""

    texts: dict[str, Sequence[Document]]  # by the name that log and card use
    vocabulary: DraftVocabulary
    ssms: list[Any] = field(default_factory=list)
    ranks: list[dict[str, list[Tensor]]] = field(default_factory=list)  # of each SSM alone, by text

    def add(self, ssm: Any) -> dict[str, PoolSoFar]:
        """The measures by text, now that `ssm` belongs to the pool."""
        self.ssms.append(ssm)
        self.ranks.append(
            {name: answer_ranks([ssm], documents, self.vocabulary) for name, documents in self.texts.items()}
        )
        return {name: self._measure(name) for name in self.texts}

    def _measure(self, name: str) -> PoolSoFar:
        by_ssm = [ranks[name] for ranks in self.ranks]
        newest = mean = summarise(by_ssm[-1])
        covered = any_top(by_ssm)
        say("evaluate", f"{name}: {newest.line()}")
        if len(by_ssm) > 1:
            mean = summarise(answer_ranks(self.ssms, self.texts[name], self.vocabulary))
            say("pool", f"{name}: mean of the laws of SSMs 1-{len(by_ssm)}: {mean.line()}")
            shares = " / ".join(f"{100 * share:.1f}" for share in covered)
            say("pool", f"{name}: within the first 1 / 2 / 3 / 4 / 5 of some SSM at depth 1: {shares} %")
        return PoolSoFar(newest, mean, covered)
