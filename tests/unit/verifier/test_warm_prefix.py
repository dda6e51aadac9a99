"""What a warm prefix is worth: ratios within one run, on a model large enough for its products to matter."""

from __future__ import annotations

from pathlib import Path
from random import Random
from statistics import median

import pytest

from specgrove.runtime.loading import load_model
from support.engine_stand import running_stand
from support.tiny_models import VOCAB_SIZE, write_tiny_model

PREFIX_LEN = 1000
MAX_TOKENS = 40
NUM_ROUNDS = 5


@pytest.mark.slow
def test_the_first_token_after_a_warm_prefix_comes_in_a_fifth_of_the_time(tmp_path: Path) -> None:
    """Cold and warm in turns; decoding after a hit takes no longer either (half as long again is noise here)."""
    folder = write_tiny_model(
        tmp_path,
        hidden_size=128,
        num_hidden_layers=6,
        max_context_len=2048,
        intermediate_size=384,
        initializer_range=0.05,
    )
    random = Random(1)
    ttft_s: dict[str, list[float]] = {"cold": [], "warm": []}
    decode_s: dict[str, list[float]] = {"cold": [], "warm": []}
    with running_stand(load_model(folder, "float32"), kv_tokens=8192, block_size=16, max_nodes=0) as stand:
        for _ in range(NUM_ROUNDS):
            prefix = [random.randrange(3, VOCAB_SIZE) for _ in range(PREFIX_LEN)]
            for kind in ("cold", "warm"):
                question = [random.randrange(3, VOCAB_SIZE) for _ in range(20)]
                stats = stand.generate(prefix + question, MAX_TOKENS).stats
                ttft_s[kind].append(stats.prefill_s)
                decode_s[kind].append(stats.decode_s)
    first, after = (median(times["warm"]) / median(times["cold"]) for times in (ttft_s, decode_s))
    print(f"warm / cold: first token {first:.3f}, decoding {after:.3f}")
    assert first <= 1 / 5
    assert after <= 1.5
