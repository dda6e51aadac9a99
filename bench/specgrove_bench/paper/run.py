"""From options to a report: load, measure the costs, plan, measure, sum up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from specgrove.errors import InvalidInput
from specgrove.runtime.loading import LoadedModel, load_model
from specgrove.text import Tokenizer
from specgrove_bench.machine import Machine
from specgrove_bench.options import ROOT
from specgrove_bench.paper.cost import measure_costs
from specgrove_bench.paper.findings import Findings
from specgrove_bench.paper.options import PaperOptions
from specgrove_bench.paper.progress import Progress, Say, in_words
from specgrove_bench.paper.prompt_choice import choose_prompts
from specgrove_bench.paper.report import Report
from specgrove_bench.paper.speculator import SsmPool
from specgrove_bench.paper.study import MAX_TREE_NODES, Setting, Study
from specgrove_bench.prompts import BenchPrompt
from specgrove_local.models import ensure_model, ensure_target, shipped_ssms


def run(options: PaperOptions, say: Say) -> Report:
    """Measure what `options` ask for. Raises `SpecgroveError`."""
    machine = Machine.of_this_run()
    began_s = time.monotonic()
    folder = _target_folder(options, say)
    tokenizer = Tokenizer.load(folder)
    prompts = choose_prompts(options.prompts, tokenizer)
    say(f"loading {folder.name} and its SSMs")
    target = load_model(folder)
    _check_context(target, prompts, options)
    pool = SsmPool.load(_ssm_folders(options), target, max_cached_tokens=_cached_tokens(prompts, options))
    say("measuring the cost of steps and levels")
    costs = measure_costs(target, (*pool.ssms, *pool.stacks), prompts[0], pool.layout.layers)
    findings = Findings(ssm_names=tuple(ssm.name for ssm in pool.ssms), costs=costs if "f" in options.tables else None)
    setting = Setting(options, target, pool, frozenset(tokenizer.eos_token_ids), costs, findings)
    _measure(setting, prompts, say)
    return Report(options, machine, folder.name, prompts, findings, time.monotonic() - began_s)


def _measure(setting: Setting, prompts: Sequence[BenchPrompt], say: Say) -> None:
    size = setting.options.batch
    studies = [Study(setting, prompts[first : first + size], first) for first in range(0, len(prompts), size)]
    estimate_s = sum(task.estimate_s for study in studies for task in study.tasks())
    num_batches = f" in {len(studies)} batches" if len(studies) > 1 else ""
    say(f"{len(prompts)} prompts{num_batches}, tables {', '.join(setting.options.tables)}: {in_words(estimate_s)}")
    progress = Progress(estimate_s, say)
    for number, study in enumerate(studies, start=1):
        progress.run(study.tasks(), f"batch {number} of {len(studies)}" if len(studies) > 1 else "measurement")
        study.close()


def _target_folder(options: PaperOptions, say: Say) -> Path:
    if options.target is None:
        return ensure_target(ROOT / ".cache", report=say)
    return ensure_model(options.target, ROOT / ".cache", report=say)


def _ssm_folders(options: PaperOptions) -> tuple[Path, ...]:
    if options.ssm or options.target is not None:
        return options.ssm
    return shipped_ssms()


def _check_context(target: LoadedModel, prompts: Sequence[BenchPrompt], options: PaperOptions) -> None:
    longest = max(len(prompt.token_ids) for prompt in prompts)
    if longest + options.max_tokens > target.max_context_len:
        raise InvalidInput(
            f"a prompt of {longest} tokens and {options.max_tokens} more do not fit the target's context of "
            f"{target.max_context_len}; lower --max-prompt-tokens or --max-tokens",
            field="--max-tokens",
        )


def _cached_tokens(prompts: Sequence[BenchPrompt], options: PaperOptions) -> int:
    """Room for every session of a batch in an SSM's cache."""
    longest = max(len(prompt.token_ids) for prompt in prompts)
    return (options.batch + 1) * (longest + options.max_tokens + 2 * max(MAX_TREE_NODES, options.max_nodes) + 64)
