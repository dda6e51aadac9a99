"""The SSM before any training: the target's first layers, a trimmed embedding, and a head that is exact algebra.

    tokens -> trimmed embedding -> target's layers 1..n -> RMS norm (weight 1) = x -> head
    head = trimmed target head @ M^T,   M = argmin sum |x M - y|^2 + ridge |M|^2,   y = the target's final state

so the head guesses the target's last state from an early one and reads it with the target's own head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specgrove_drafter.tuning.batches import Batch, in_order
from specgrove_drafter.tuning.folded_head import FoldedHead
from specgrove_drafter.tuning.hub import build_llama
from specgrove_drafter.tuning.shards import Document
from specgrove_drafter.tuning.vocabulary import DraftVocabulary


@dataclass(slots=True)
class NormalEquations:
    """Sums for `min |X M - Y|^2`, grown batch by batch, so that no matrix has a row per token."""

    gram: Tensor  # float64 [inputs, inputs], X^T X
    cross: Tensor  # float64 [inputs, outputs], X^T Y
    num_rows: int = 0

    @classmethod
    def empty(cls, num_inputs: int, num_outputs: int) -> NormalEquations:
        zeros = torch.zeros(num_inputs, num_inputs + num_outputs, dtype=torch.float64)
        return cls(zeros[:, :num_inputs].clone(), zeros[:, num_inputs:].clone())

    def add(self, inputs: Tensor, outputs: Tensor) -> None:
        """Add rows: float32 [N, inputs] and [N, outputs]."""
        self.gram += (inputs.T @ inputs).double().cpu()
        self.cross += (inputs.T @ outputs).double().cpu()
        self.num_rows += inputs.shape[0]

    def solve(self, ridge: float) -> Tensor:
        """float32 [inputs, outputs]; `ridge` is relative to the mean square of an input."""
        strength = ridge * self.gram.diagonal().mean().clamp(min=1e-12)
        eye = torch.eye(self.gram.shape[0], dtype=torch.float64)
        return torch.linalg.solve(self.gram + strength * eye, self.cross).float()


def head_weight(target_model: Any) -> Tensor:
    """float32 [vocabulary, hidden] of the target's head, tied or not, packed or not."""
    head = target_model.lm_head
    weight = getattr(head, "weight", None)
    if weight is None:  # packed layers hide theirs; a tied head's rows are the embedding
        weight = target_model.get_input_embeddings().weight
    return weight.detach().float().cpu()


def build_ssm(target_model: Any, vocabulary: DraftVocabulary, num_layers: int, token_ids: dict[str, int | None]) -> Any:
    """The SSM with the target's first layers and trimmed tables; its head is the target's own until it is fitted."""
    ssm = build_llama(
        target_model.config,
        num_layers=num_layers,
        vocab_size=vocabulary.size,
        token_ids=token_ids,
        extra={"draft_vocab_other_id": vocabulary.other_id},
    )
    source = target_model.state_dict()
    wanted = {name: source[name].float().cpu() for name in ssm.state_dict() if name.startswith("model.layers.")}
    wanted["model.norm.weight"] = torch.ones(target_model.config.hidden_size)
    wanted["model.embed_tokens.weight"] = trim_rows(source["model.embed_tokens.weight"].float().cpu(), vocabulary)
    wanted["lm_head.weight"] = trim_rows(head_weight(target_model), vocabulary)
    ssm.load_state_dict(wanted)
    return ssm


def trim_rows(table: Tensor, vocabulary: DraftVocabulary) -> Tensor:
    """[target vocabulary, H] -> [V, H]: the kept rows, then the mean of all others."""
    outside = vocabulary.to_draft() == vocabulary.other_id
    mean = table[outside].mean(0, keepdim=True) if bool(outside.any()) else table.mean(0, keepdim=True)
    return torch.cat([table[vocabulary.target_ids], mean])


def other_scores(states: Tensor, head: Tensor, outside: Tensor) -> Tensor:
    """float32 [N, 1]: the log of the summed weight of all tokens outside, on the scale of the target's logits."""
    return (states @ head[outside].T).logsumexp(-1, keepdim=True)


def fit_head(
    ssm: Any,
    batches: Iterable[tuple[Batch, Sequence[Document]]],
    head: Tensor,
    vocabulary: DraftVocabulary,
    ridge: float,
) -> NormalEquations:
    """Give the SSM the fitted head, in place, as a `FoldedHead` so that training can go on from the map.

    The class for all other tokens is one more output of the same regression. It is costly to evaluate (every row
    outside), so it is fitted on every eighth position.
    """
    hidden = head.shape[1]
    outside = vocabulary.to_draft() == vocabulary.other_id
    states_fit, other_fit = NormalEquations.empty(hidden, hidden), NormalEquations.empty(hidden, 1)
    for inputs, states in state_pairs(ssm, batches):
        states_fit.add(inputs, states)
        if bool(outside.any()):
            other_fit.add(inputs[::8], other_scores(states[::8], head, outside))
    rows, fitted_map = head[vocabulary.target_ids], states_fit.solve(ridge)
    other = other_fit.solve(ridge).T if other_fit.num_rows else (rows @ fitted_map.T).mean(0, keepdim=True)
    ssm.lm_head = FoldedHead(rows, fitted_map, other).to(next(ssm.parameters()).device)
    return states_fit


@torch.no_grad()
def state_pairs(ssm: Any, batches: Iterable[tuple[Batch, Sequence[Document]]]) -> Iterator[tuple[Tensor, Tensor]]:
    """SSM states float32 [N, hidden] beside the target's final states [N, hidden], where the latter were kept."""
    device = next(ssm.parameters()).device
    for batch, documents in batches:
        inputs = ssm.model(input_ids=batch.tokens.to(device), use_cache=False).last_hidden_state.float().cpu()
        seen = batch.seen
        states = torch.nn.utils.rnn.pad_sequence([document.states for document in documents], batch_first=True)
        yield inputs[seen], states[seen].float()


def fit_batches(
    documents: Sequence[Document], vocabulary: DraftVocabulary, max_tokens: int
) -> Iterator[tuple[Batch, list[Document]]]:
    """Batches of the first documents that hold `max_tokens` tokens together."""
    chosen, total = [], 0
    for document in documents:
        if total >= max_tokens:
            break
        chosen.append(document)
        total += len(document)
    return in_order(chosen, vocabulary.to_draft(), 4096)
