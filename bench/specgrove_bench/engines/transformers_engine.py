"""`transformers` generate in float32 on the same prompts, plain or assisted by the same SSM."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import transformers

from specgrove_bench.engines.assistant import load_assistant
from specgrove_bench.request import Answer, Ask, Chunk


class _Clock(transformers.generation.streamers.BaseStreamer):
    """Notes when tokens come. The prompt is put first."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._is_prompt = True
        self.chunks: list[Chunk] = []

    def put(self, value: torch.Tensor) -> None:
        if not self._is_prompt:
            self.chunks.append(Chunk(time.perf_counter() - self._began, value.numel()))
        self._is_prompt = False

    def end(self) -> None:
        pass


class TransformersTarget:
    """The target in this process, loaded once for both ways. Torch's own number of threads, with nobody else at work.

    `generate` holds up the event loop while it works, and that is wanted: its OpenMP pool must not move to another
    thread, and nothing else is timed meanwhile.
    """

    def __init__(self, folder: Path) -> None:
        transformers.utils.logging.disable_progress_bar()
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.vocab_size: int = self.model.config.get_text_config().vocab_size


class TransformersClient:
    """Plain `generate`, or assisted generation with `ssm` in transformers' own way of choosing how far to draft."""

    def __init__(self, target: TransformersTarget, ssm: Path | None = None, num_assistant_tokens: int = 0) -> None:
        self._target = target
        self._assistant = load_assistant(ssm, target.vocab_size) if ssm is not None else None
        if self._assistant is not None and num_assistant_tokens:
            self._assistant.generation_config.num_assistant_tokens = num_assistant_tokens

    async def close(self) -> None:
        """Nothing to close: the model goes with the process."""

    async def ask(self, ask: Ask) -> Answer:
        return self.generate(ask)

    @torch.inference_mode()
    def generate(self, ask: Ask) -> Answer:
        prompt = torch.tensor([list(ask.token_ids)])
        clock = _Clock()
        output = self._target.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=ask.max_tokens,
            pad_token_id=0,
            streamer=clock,
            **_sampling(ask),
            **({"min_new_tokens": ask.max_tokens} if ask.ignore_eos else {}),
            **({"assistant_model": self._assistant} if self._assistant is not None else {}),
        )
        token_ids = tuple(int(token_id) for token_id in output[0, len(ask.token_ids) :])
        return Answer(tuple(clock.chunks), token_ids)


def _sampling(ask: Ask) -> dict[str, object]:
    if ask.temperature == 0.0:
        return {"do_sample": False}
    torch.manual_seed(ask.seed)
    return {"do_sample": True, "temperature": ask.temperature, "top_p": ask.top_p, "top_k": 0}
