"""`transformers` generate in float32 on the same prompts: what a user has before specgrove."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers


@dataclass(frozen=True, slots=True)
class ReferenceAnswer:
    token_ids: tuple[int, ...]
    time_per_token_s: float  # without the first token, as everywhere here


class _Clock(transformers.generation.streamers.BaseStreamer):
    """Notes when each token comes."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


class TransformersReference:
    """The target in this process, loaded once. Torch's own number of threads, with nobody else at work."""

    def __init__(self, folder: Path) -> None:
        transformers.utils.logging.disable_progress_bar()
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.generate((1,), max_tokens=4)  # the first forward is slow

    @torch.inference_mode()
    def generate(self, prompt_ids: Sequence[int], *, max_tokens: int) -> ReferenceAnswer:
        prompt = torch.tensor([list(prompt_ids)])
        clock = _Clock()
        output = self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=max_tokens,
            pad_token_id=0,
            streamer=clock,
        )
        _, first, *later = clock.times  # the prompt itself comes first
        per_token_s = (later[-1] - first) / len(later) if later else float("nan")
        return ReferenceAnswer(tuple(int(token_id) for token_id in output[0, len(prompt_ids) :]), per_token_s)
