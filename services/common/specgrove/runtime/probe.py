"""The check at load time: a few rows through our attention and cache, against what the model itself says of them.

    sequence A   prefix, in one forward      then, in a second one    root ─┬─ a ── c
    sequence B   prefix, packed beside it    one row beside the tree        └─ b

The second forward is the point: a layer that keeps a state other than keys and values (a convolution, a state space,
linear attention) has forgotten it by then, and one that reads its neighbours in the pack has mixed the sequences up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from specgrove.errors import ModelLoadError
from specgrove.runtime import hf
from specgrove.runtime.forward import PackedForward, SequenceRows

if TYPE_CHECKING:
    from specgrove.runtime.loading import LoadedModel

_TOLERANCE = 2e-2  # of the largest logit; a wrong mask, scale or state is off by tens of percent
_TREE_PARENTS = (-1, 0, 0, 1)  # root, a, b, c
_TREE_DEPTHS = (0, 1, 1, 2)


@torch.inference_mode()
def check_attention(loaded: LoadedModel) -> None:
    """Raise `ModelLoadError` unless tree attention gives the model's own logits, within rounding."""
    tokens = (torch.arange(1, 16) * 37 % loaded.vocab_size).tolist()
    prefix_a, prefix_b, tree, last_b = tokens[:5], tokens[5:8], tokens[8:12], tokens[12]
    try:
        ours = _through_the_cache(loaded, prefix_a, prefix_b, tree, last_b)
        path_c = _own_logits(loaded, [*prefix_a, tree[0], tree[1], tree[3]])
        path_b = _own_logits(loaded, [*prefix_a, tree[0], tree[2]])
        beside = _own_logits(loaded, [*prefix_b, last_b])
        theirs = torch.stack([beside[-1], path_c[-3], path_c[-2], path_b[-1], path_c[-1]])
    except (TypeError, ValueError, RuntimeError, IndexError, KeyError, AttributeError) as error:
        raise ModelLoadError(f"{loaded.source}: this architecture cannot run on the tree attention: {error}") from error
    difference = float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-6))
    if not difference <= _TOLERANCE:  # not `>`: a NaN must fail
        raise ModelLoadError(
            f"{loaded.source}: tree attention differs from the model's own by {difference:.3f} of the largest logit; "
            "a layer has a feature that is not supported, or a state that is not keys and values"
        )


def _through_the_cache(
    loaded: LoadedModel, prefix_a: Sequence[int], prefix_b: Sequence[int], tree: Sequence[int], last_b: int
) -> torch.Tensor:  # float32 [5, V]: b's row, then the tree's
    cache = loaded.new_cache(max_tokens=64, block_size=4)
    forward = PackedForward(loaded, cache)
    seq_a, seq_b = cache.new_sequence(), cache.new_sequence()
    len_a, len_b = len(prefix_a), len(prefix_b)
    forward.run(
        [
            SequenceRows(seq_a, prefix_a, range(len_a), range(-1, len_a - 1), [False] * len_a),
            SequenceRows(seq_b, prefix_b, range(len_b), range(-1, len_b - 1), [False] * (len_b - 1) + [True]),
        ]
    )
    cache.commit(seq_a, range(len_a))
    cache.commit(seq_b, range(len_b))
    positions = [len_a + depth for depth in _TREE_DEPTHS]
    return forward.run(
        [
            SequenceRows(seq_b, [last_b], [len_b], [-1], [True]),
            SequenceRows(seq_a, tree, positions, _TREE_PARENTS, [True] * len(tree)),
        ]
    )


def _own_logits(loaded: LoadedModel, token_ids: Sequence[int]) -> torch.Tensor:  # float32 [N, V]
    """The logits after each token of one sequence, by the model's own attention."""
    hf.set_attention(loaded.model, "eager")
    try:
        ids = torch.tensor([list(token_ids)], device=loaded.device)
        positions = torch.arange(len(token_ids), device=loaded.device).unsqueeze(0)
        return loaded.model(input_ids=ids, position_ids=positions, use_cache=False).logits[0].float()
    finally:
        hf.set_attention(loaded.model, hf.ATTENTION_NAME)
