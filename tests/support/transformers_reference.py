"""`transformers` itself in float32, as the reference that plain decoding must equal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

_PAD = 0


class TransformersReference:
    """Loads the model in this process (half a gigabyte, seconds)."""

    def __init__(self, folder: Path, eos_token_ids: Sequence[int]) -> None:
        transformers.utils.logging.disable_progress_bar()
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._eos_token_ids = frozenset(eos_token_ids)

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """The greedy continuations by `generate`, end-of-sequence tokens included where they came.

        One padded batch: on a CPU it takes as long as one prompt alone. The padding is masked to exact zeros.
        """
        width = max(map(len, prompts))
        rows = [[_PAD] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        output = self._model.generate(
            torch.tensor(rows),
            attention_mask=torch.tensor(mask),
            do_sample=False,
            max_new_tokens=max_tokens,
            pad_token_id=_PAD,
        )
        return [self._until_end(row) for row in output[:, width:].tolist()]

    @torch.inference_mode()
    def logit_gap(self, token_ids: Sequence[int]) -> float:
        """How far the two best logits lie apart for the token after `token_ids`."""
        logits = self._model(torch.tensor([list(token_ids)])).logits[0, -1].float()
        best = logits.topk(2).values.tolist()
        return float(best[0] - best[1])

    def _until_end(self, token_ids: list[int]) -> list[int]:
        """Without the padding behind the first end-of-sequence token."""
        for place, token_id in enumerate(token_ids):
            if token_id in self._eos_token_ids:
                return token_ids[: place + 1]
        return token_ids
