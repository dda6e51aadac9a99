"""Penalties and `logit_bias`: how what was said before, and what the client wishes, move the target's raw logits.

    committed    p p p p | o o o     p: prompt, o: output; the last one is the root
    tree                   └─ a ── b
    row of b     logits + bias, then penalties with counts(o o o a b), not counts(o o o): each row has its own path

In this order, vLLM's (vllm/v1/sample/sampler.py), each on the outcome of the one before:

    1. logit_bias           + bias
    2. repetition_penalty   / penalty if positive, * penalty if not: tokens of prompt or output (Hugging Face)
    3. frequency_penalty    - penalty * times in the output
    4. presence_penalty     - penalty if in the output

then `min_tokens` (`suppress`), temperature, top-k, top-p, min-p. Greedy takes the likeliest of what comes out of here.
A node's row is moved by the very same operations as the row of plain decoding with the same tokens, so it comes out
bit by bit the same. Only the columns of tokens that count are read and written.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from specgrove.sampling.params import SamplingParams
from specgrove.tree import ROOT, TokenTree

_LARGEST = torch.finfo(torch.float32).max


class LogitAdjuster:
    """The adjustments of one generation, and the counts of its committed tokens that they need."""

    def __init__(self, params: SamplingParams, prompt_token_ids: Sequence[int]) -> None:
        self._params = params
        self._column_of: dict[int, int] = {}  # of the tokens that are adjusted or counted
        self._token_ids = np.empty(0, dtype=np.int64)  # [K] by column
        self._counts = np.empty(0, dtype=np.float32)  # [K] times in the committed output
        self._is_in_prompt = np.empty(0, dtype=bool)  # [K] filled where repetition_penalty asks for it
        self._add_columns([token_id for token_id, _ in params.logit_bias])
        self._bias = np.array([bias for _, bias in params.logit_bias], dtype=np.float32)  # [the first columns]
        if params.repetition_penalty != 1.0:
            self._add_columns(prompt_token_ids)
            self._is_in_prompt[[self._column_of[token_id] for token_id in set(prompt_token_ids)]] = True

    @classmethod
    def of(cls, params: SamplingParams, prompt_token_ids: Sequence[int], output: Sequence[int]) -> LogitAdjuster | None:
        """The adjuster of a generation that has said `output` so far; None if `params` adjust nothing."""
        if not params.has_penalties and not params.logit_bias:
            return None
        adjuster = cls(params, prompt_token_ids)
        adjuster.append(output)
        return adjuster

    def append(self, token_ids: Sequence[int]) -> None:
        """Count committed output."""
        if self._params.has_penalties:
            self._add_columns(token_ids)
            for token_id in token_ids:
                self._counts[self._column_of[token_id]] += 1.0

    def adjust(self, logits: torch.Tensor, tree: TokenTree) -> torch.Tensor:
        """What the target says after each node of `tree`, adjusted: float32 [N, V] -> float32 [N, V], a copy.

        The root is the last committed token, already counted or part of the prompt.
        """
        # Tokens of the tree that were not said before get columns of their own, for this once.
        strange = dict.fromkeys(tree.token_ids[1:]) if self._params.has_penalties else {}
        passing = [token_id for token_id in strange if token_id not in self._column_of]
        token_ids = np.concatenate([self._token_ids, np.array(passing, dtype=np.int64)])
        columns = torch.from_numpy(token_ids).to(logits.device)
        scores = logits[:, columns]  # float32 [N, K]
        if len(self._bias):
            scores[:, : len(self._bias)] += torch.from_numpy(self._bias).to(logits.device)
        if self._params.has_penalties:
            counts = torch.from_numpy(self._counts_after(tree, passing)).to(logits.device)  # float32 [N, K]
            scores = self._penalised(scores, counts)
        return logits.index_copy(1, columns, scores)

    def _penalised(self, scores: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        params = self._params
        is_in_output = counts > 0.0
        if (penalty := params.repetition_penalty) != 1.0:
            is_seen = is_in_output.clone()
            is_seen[:, : len(self._is_in_prompt)] |= torch.from_numpy(self._is_in_prompt).to(scores.device)
            moved = torch.where(scores > 0.0, scores / penalty, scores * penalty)
            scores = torch.where(is_seen, moved.clamp(-_LARGEST, _LARGEST), scores)
        if params.frequency_penalty:
            scores = scores - counts * params.frequency_penalty
        if params.presence_penalty:
            scores = scores - is_in_output * params.presence_penalty
        return scores

    def _counts_after(self, tree: TokenTree, passing: Sequence[int]) -> np.ndarray:  # float32 [N, K]
        num_kept = len(self._token_ids)
        passing_column_of = {token_id: num_kept + place for place, token_id in enumerate(passing)}
        counts = np.zeros((tree.num_nodes, num_kept + len(passing)), dtype=np.float32)
        counts[ROOT, :num_kept] = self._counts
        for node in range(1, tree.num_nodes):  # parents come first
            token_id = tree.token_ids[node]
            column = self._column_of.get(token_id)
            counts[node] = counts[tree.parents[node]]
            counts[node, passing_column_of[token_id] if column is None else column] += 1.0
        return counts

    def _add_columns(self, token_ids: Sequence[int]) -> None:
        fresh = [token_id for token_id in dict.fromkeys(token_ids) if token_id not in self._column_of]
        if not fresh:
            return
        self._column_of.update(zip(fresh, range(len(self._column_of), len(self._column_of) + len(fresh)), strict=True))
        self._token_ids = np.concatenate([self._token_ids, np.array(fresh, dtype=np.int64)])
        self._counts = np.concatenate([self._counts, np.zeros(len(fresh), dtype=np.float32)])
        self._is_in_prompt = np.concatenate([self._is_in_prompt, np.zeros(len(fresh), dtype=bool)])
