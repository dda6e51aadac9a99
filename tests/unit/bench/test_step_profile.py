"""The step's profile: every operator counted once, written down, and an exit status that a script can use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specgrove_bench.step_profile import main
from support.tiny_models import write_tiny_model


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    folder = write_tiny_model(tmp_path / "tiny", has_tokenizer=False)
    shape = ["--sessions", "1,3", "--rows", "1,4", "--prefix-len", "20", "--repeats", "3"]
    return ["--model", str(folder), "--weights", "fp16_packed", *shape, "--json", str(tmp_path / "profile.json")]


@pytest.mark.parametrize(("kernels", "activation"), [("auto", "compiled::gate"), ("off", "aten::silu")])
def test_a_step_is_split_into_products_attention_and_the_rest(
    arguments: list[str], tmp_path: Path, kernels: str, activation: str
) -> None:
    pytest.importorskip("numba")
    assert main([*arguments, "--cpu-kernels", kernels]) == 0
    measured = json.loads((tmp_path / "profile.json").read_text())
    assert [(times["sessions"], times["rows"]) for times in measured] == [(1, 1), (1, 4), (3, 1), (3, 4)]
    for times in measured:
        assert times["step_ms"] > times["bare_ms"] > 0
        assert times["attention_ms"] > 0
        assert 0 <= times["rest_share"] < 1
        names = {operator["name"] for operator in times["rest_by_operator"]}
        assert activation in names
        assert not {"quantized::linear_dynamic_fp16", "aten::bmm", "aten::_softmax", "compiled::attend"} & names


@pytest.mark.parametrize("limit", [["--max-ratio", "0.01"], ["--max-rest", "-1"]])
def test_a_step_above_a_limit_is_an_exit_status(arguments: list[str], limit: list[str]) -> None:
    assert main([*arguments, *limit]) == 1
