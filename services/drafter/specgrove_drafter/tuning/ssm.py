"""The SSM before any training: the target's first layers, a trimmed embedding, and a head that is exact algebra.

    tokens -> trimmed embedding -> target's layers 1..n -> RMS norm (weight 1) = x -> maps -> trimmed target head
    maps at each draft depth = argmin sum |[x, f] M - y|^2 + ridge |M|^2,   y = the target's final state

so the head guesses the target's last state from an early one (and, at depth d, from the target's features d rows
further up) and reads it with the target's own head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specgrove_drafter.tuning.batches import Batch, KeptPositions, in_order
from specgrove_drafter.tuning.depth_head import DepthHead
from specgrove_drafter.tuning.hub import build_small
from specgrove_drafter.tuning.mlp_width import narrow_mlps
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


def build_ssm(
    target_model: Any,
    vocabulary: DraftVocabulary,
    num_layers: int,
    token_ids: dict[str, int | None],
    *,
    num_depths: int = 0,
    num_features: int = 0,
    mlp_width: int = 0,
) -> Any:
    """The SSM with the target's first layers and trimmed tables; its head knows nothing until it is fitted.

    `mlp_width` 0 keeps the MLPs as wide as the target's.
    """
    width = {"intermediate_size": mlp_width} if mlp_width else {}
    ssm = build_small(
        target_model.config,
        num_layers=num_layers,
        vocab_size=vocabulary.size,
        token_ids=token_ids,
        extra={"draft_vocab_other_id": vocabulary.other_id, **width},
    )
    source = target_model.state_dict()
    wanted = {
        name: source[name].float().cpu()
        for name, value in ssm.state_dict().items()
        if name in source and source[name].shape == value.shape
    }
    if mlp_width:
        wanted |= narrow_mlps(source, num_layers, mlp_width)
    wanted["model.embed_tokens.weight"] = trim_rows(source["model.embed_tokens.weight"].float().cpu(), vocabulary)
    neutral = _neutral_weight(ssm.model.norm, ssm.config.hidden_size)
    if neutral is not None:
        wanted["model.norm.weight"] = neutral
    rows = head_weight(target_model)[vocabulary.target_ids]
    ssm.lm_head = DepthHead.blank(rows, num_depths, num_features)
    wanted |= {f"lm_head.{name}": value for name, value in ssm.lm_head.state_dict().items()}
    ssm.load_state_dict(wanted)
    return ssm


@torch.no_grad()
def _neutral_weight(norm: Any, hidden_size: int) -> Tensor | None:
    """The weight with which a norm only normalises, where it has one: 1, or 0 for those that add 1 themselves."""
    states = torch.linspace(-1, 1, hidden_size)[None]
    for value in (1.0, 0.0):
        norm.weight.fill_(value)
        if abs(float(norm(states).square().mean()) - 1.0) < 0.05:
            return norm.weight.detach().clone()
    return None


def trim_rows(table: Tensor, vocabulary: DraftVocabulary) -> Tensor:
    """[target vocabulary, H] -> [V, H]: the kept rows, then the mean of all others."""
    outside = vocabulary.to_draft() == vocabulary.other_id
    mean = table[outside].mean(0, keepdim=True) if bool(outside.any()) else table.mean(0, keepdim=True)
    return torch.cat([table[vocabulary.target_ids], mean])


def other_scores(states: Tensor, head: Tensor, outside: Tensor) -> Tensor:
    """float32 [N, 1]: the log of the summed weight of all tokens outside, on the scale of the target's logits."""
    return (states @ head[outside].T).logsumexp(-1, keepdim=True)


@torch.no_grad()
def fit_head(
    ssm: Any,
    batches: Iterable[tuple[Batch, Sequence[Document]]],
    head: Tensor,
    vocabulary: DraftVocabulary,
    ridge: float,
) -> int:
    """Fit the maps of the SSM's head in place, one ridge regression a depth; returns the number of rows used.

    The class for all other tokens is read off the guess of depth 0. It is costly to evaluate (every row of the target's
    head that is outside), so it is fitted on every eighth position.
    """
    fitted: DepthHead = ssm.lm_head
    hidden, num_features = head.shape[1], fitted.feature_maps.shape[1]
    outside = vocabulary.to_draft() == vocabulary.other_id
    sizes = [hidden] + [hidden + num_features] * fitted.num_depths
    by_depth = [NormalEquations.empty(size, hidden) for size in sizes]
    sample: list[tuple[Tensor, Tensor]] = []
    for states, batch, documents in ssm_states(ssm, batches):
        wanted = torch.nn.utils.rnn.pad_sequence([document.states for document in documents], batch_first=True).float()
        counted = batch.seen & batch.kept
        by_depth[0].add(states[counted], wanted[counted])
        if bool(outside.any()):
            sample.append((states[counted][::8], wanted[counted][::8]))
        for depth in range(1, fitted.num_depths + 1):
            before, known = batch.features_before(depth)
            both = counted & known
            by_depth[depth].add(torch.cat([states[both], before[both].float()], dim=-1), wanted[both])
    fitted.token_map.copy_(by_depth[0].solve(ridge))
    for depth, equations in enumerate(by_depth[1:]):
        maps = equations.solve(ridge)
        fitted.state_maps[depth], fitted.feature_maps[depth] = maps[:hidden], maps[hidden:]
    _fit_other(fitted, sample, head, outside, ridge)
    return by_depth[0].num_rows


def _fit_other(
    head: DepthHead, sample: list[tuple[Tensor, Tensor]], rows: Tensor, outside: Tensor, ridge: float
) -> None:
    equations = NormalEquations.empty(rows.shape[1], 1)
    token_map = head.token_map.cpu()
    for states, wanted in sample:
        equations.add(states @ token_map, other_scores(wanted, rows, outside))
    if equations.num_rows:
        head.other.copy_(equations.solve(ridge).T)
    else:
        head.other.copy_(head.rows.mean(0, keepdim=True))


@torch.no_grad()
def ssm_states(
    ssm: Any, batches: Iterable[tuple[Batch, Sequence[Document]]]
) -> Iterator[tuple[Tensor, Batch, Sequence[Document]]]:
    """The SSM's last states, float32 [B, L, H] on the CPU, beside each batch."""
    device = next(ssm.parameters()).device
    for batch, documents in batches:
        states = ssm.model(input_ids=batch.tokens.to(device), use_cache=False).last_hidden_state
        yield states.float().cpu(), batch, documents


def fit_batches(
    documents: Sequence[Document], vocabulary: DraftVocabulary, max_tokens: int, kept: KeptPositions | None = None
) -> Iterator[tuple[Batch, list[Document]]]:
    """Batches of the first documents that hold `max_tokens` tokens together."""
    chosen, total = [], 0
    for document in documents:
        if total >= max_tokens:
            break
        chosen.append(document)
        total += len(document)
    return in_order(chosen, vocabulary.to_draft(), 4096, kept)
