"""The measuring itself: prompt by prompt, every mode in turn, so that noise of the machine hits all of them alike."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from specgrove_bench.figures import Run
from specgrove_bench.gateway import GatewayClient
from specgrove_bench.modes import MODES
from specgrove_bench.options import BenchOptions
from specgrove_bench.prompts import BenchPrompt
from specgrove_bench.reference import ReferenceAnswer, TransformersReference
from specgrove_bench.systems import Report, running_systems
from specgrove_bench.verifier_page import read_sums

_WARM_UP_TOKENS = 16


@dataclass(slots=True)
class Measurements:
    """Everything a bench has seen. Runs of a mode are in the order of the prompts."""

    runs: dict[str, list[Run]] = field(default_factory=dict)
    transformers: list[ReferenceAnswer] = field(default_factory=list)  # of the first prompts


def measure(
    options: BenchOptions, prompts: Sequence[BenchPrompt], target: Path, ssms: Sequence[Path], report: Report
) -> Measurements:
    """Run all modes over all prompts. The first mode and the order rotate from prompt to prompt."""
    seen = Measurements({mode: [] for mode in options.modes})
    reference = TransformersReference(target) if options.num_transformers_prompts else None
    with ExitStack() as stack:
        systems = stack.enter_context(running_systems(options.modes, options, target, ssms, report))
        clients = {
            name: stack.enter_context(GatewayClient(system.gateway_grpc_address)) for name, system in systems.items()
        }
        for mode in options.modes:  # the first forwards of a process are slow
            info = MODES[mode]
            clients[info.system].ask(prompts[0].token_ids, max_tokens=_WARM_UP_TOKENS, speculation=info.speculation)
        for number, prompt in enumerate(prompts):
            report(f"prompt {number + 1} of {len(prompts)} ({prompt.category}, {len(prompt.token_ids)} tokens)")
            shift = number % len(options.modes)
            for mode in (*options.modes[shift:], *options.modes[:shift]):
                info = MODES[mode]
                page_url = systems[info.system].verifiers[0].metrics_url
                before = read_sums(page_url)
                answer = clients[info.system].ask(
                    prompt.token_ids, max_tokens=options.max_tokens, speculation=info.speculation
                )
                seen.runs[mode].append(Run(number, answer, read_sums(page_url) - before))
            if reference is not None and number < options.num_transformers_prompts:
                seen.transformers.append(reference.generate(prompt.token_ids, max_tokens=options.transformers_tokens))
    return seen
