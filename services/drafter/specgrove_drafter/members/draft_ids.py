"""Token ids as one SSM reads and writes them: the target's own, or those of a trimmed vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specgrove.runtime.loading import LoadedModel


@dataclass(frozen=True, slots=True, eq=False)
class DraftIds:
    """How the target's ids become the SSM's inputs, and the SSM's outputs the target's ids."""

    num_inputs: int  # of the target's ids, how many the SSM has an embedding for
    num_outputs: int  # of its logits, how many name a token that the target knows
    to_draft: list[int] | None  # a list: few tokens are looked up at a time
    to_target: torch.Tensor | None  # int64 [num_outputs]; None where ids are the same
    other_id: int | None  # the output that stands for all other target tokens

    @classmethod
    def of(cls, loaded: LoadedModel, target_vocab_size: int) -> DraftIds:
        vocab = loaded.draft_vocab
        if vocab is None:  # a padded SSM may know ids that the target does not
            return cls(loaded.vocab_size, target_vocab_size, None, None, None)
        to_target = vocab.to_target.to(loaded.device)
        return cls(vocab.to_draft.numel(), to_target.numel(), vocab.to_draft.tolist(), to_target, vocab.other_id)

    def inputs(self, token_ids: Sequence[int]) -> list[int]:
        """What goes into the SSM for `token_ids`.

        Ids that it has no embedding for stand in as token 0: that costs a draft, not the engine.
        """
        known = [token_id if token_id < self.num_inputs else 0 for token_id in token_ids]
        return known if self.to_draft is None else [self.to_draft[token_id] for token_id in known]
