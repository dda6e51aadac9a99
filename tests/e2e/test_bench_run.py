"""The bench from end to end on a tiny pair: real services, every kind of load, another engine's server."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from specgrove_bench import cli
from specgrove_bench.regression import read_result
from support import fake_completions
from support.paper_pair import write_noisy_copy
from support.tiny_models import write_tiny_model

_QUESTIONS = ("what is it?", "say it again", "one, two, three")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_model(tmp_path_factory.mktemp("bench") / "target")
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    return folder


@pytest.fixture(scope="module")
def flags(model_folder: Path) -> list[str]:
    """A run of every kind of load in a few seconds, once the services are up."""
    folder = model_folder.parent
    ssm = write_noisy_copy(model_folder, folder / "ssm", noise=0.02, seed=1)
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"category": text[:3], "turns": [text]}) + "\n" for text in _QUESTIONS))
    program = folder / "vllm"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {fake_completions.__file__} "$@"\n')
    program.chmod(0o755)
    return [
        *("--model", str(model_folder), "--ssm", str(ssm), "--prompts", str(prompts), "--run-dir", str(folder / "run")),
        *("--modes", "off,bare,tree,controller", "--engines", "transformers,assisted,vllm", "--vllm", str(program)),
        *("--num-prompts", "2", "--max-tokens", "16", "--concurrency", "1,4", "--load-tokens", "8", "--rounds", "1"),
        *("--open", "0.5", "--rates", "20", "--open-requests", "4", "--transformers-prompts", "1"),
        *("--prefix-trials", "2", "--prefix-tokens", "64", "--goodput", "ttft:5000", "tpot:5000", "--ignore-eos"),
    ]


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(900)  # three systems start one after the other
def test_all_modes_sample_the_same_tokens_at_every_load_and_everything_is_written(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run.json"
    assert cli.main([*flags, "--temperature", "1", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "All modes gave the same tokens at every load" in printed
    assert "failed" not in printed
    result = read_result(out)
    loads = {cell["load"] for cell in result["cells"]}
    assert loads == {"closed-1", "closed-4", "open-50%", "open-20rps"}
    solo = {cell["competitor"] for cell in result["cells"] if cell["load"] == "closed-1"}
    assert solo == {"off", "bare", "tree", "controller", "transformers", "assisted", "vllm"}
    assert all(cell["num_failed"] == 0 and cell["goodput"]["median"] > 0 for cell in result["cells"])
    assert len(result["prefix_trials"]) == 2
    assert result["profile"][0]["rows"] == 1
    names = " ".join(check["name"] for check in result["checks"])
    assert all(words in names for words in ("switched off", "warm prefix", "vllm", "bare matrix products"))
    assert out.with_suffix(".svg").read_text().startswith("<svg")
    assert cli.main(["--compare", str(out), str(out)]) == 0
