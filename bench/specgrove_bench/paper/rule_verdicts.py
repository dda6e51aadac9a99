"""What the target makes of one drafted tree, by rule."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specgrove.draft import ChildLaw
from specgrove.sampling.mss import MssNoise, verify_mss
from specgrove.sampling.noise import NoiseRows, noise_stream
from specgrove.sampling.params import SamplingParams
from specgrove.sampling.rules import Rule
from specgrove.sampling.target_choice import choose_tokens, process_logits
from specgrove.sampling.verification import Verdict, verify_tree
from specgrove.tree import ROOT
from specgrove_drafter.ensemble import EnsembleDraft


@dataclass(frozen=True, slots=True)
class RuledVerdict:
    """A verdict; `first_draw` is which draw below the root was accepted (rule `mss`, 0 = first; None: no draw was)."""

    verdict: Verdict
    first_draw: int | None = None


class Judge:
    """Verifies the trees of one generation."""

    def __init__(self, rule: Rule, sampling: SamplingParams, vocab_size: int) -> None:
        self._rule = rule
        self._sampling = sampling
        self._noise = NoiseRows(sampling.seed, vocab_size, stream=noise_stream(rule))

    def verdict(self, draft: EnsembleDraft, logits: torch.Tensor, base_len: int) -> RuledVerdict:
        """`logits` float32 [num_nodes, V], a row a node of the draft's tree."""
        if self._rule is Rule.MSS and not self._sampling.is_greedy:
            return self._multi_step(draft, logits, base_len)
        positions = [base_len + depth for depth in draft.tree.depths]
        choices = choose_tokens(logits, self._sampling, positions, self._noise)
        return RuledVerdict(verify_tree(draft.tree, choices))

    def _multi_step(self, draft: EnsembleDraft, logits: torch.Tensor, base_len: int) -> RuledVerdict:
        def target_probs(node: int) -> torch.Tensor:  # float64 [V]
            return process_logits(logits[node : node + 1], self._sampling)[0].double().softmax(dim=-1)

        noise = MssNoise(self._sampling.seed, self._noise)
        verdict = verify_mss(draft.tree, draft.laws, base_len, target_probs, noise)
        return RuledVerdict(verdict, _place_among_draws(draft.laws, verdict))


def _place_among_draws(laws: tuple[ChildLaw, ...], verdict: Verdict) -> int | None:
    """The place of the first accepted node among the draws below the root."""
    draws = [node for law in laws if law.parent == ROOT for node in law.draws]
    return draws.index(verdict.accepted_nodes[0]) if verdict.accepted_nodes else None
