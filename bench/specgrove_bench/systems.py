"""The running systems of a bench: one of verifier, drafter, gateway and Redis for each set of flags."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from specgrove_bench.contender import Pair
from specgrove_bench.modes import system_flags
from specgrove_bench.options import BenchOptions
from specgrove_local.cluster import LocalCluster
from specgrove_local.options import SHARED_CORES_FLAGS, ClusterOptions
from specgrove_local.ports import PortPicker

Report = Callable[[str], None]
_MIN_KV_TOKENS = 4096
_BLOCK = 16  # tokens in a KV block
_TREE_ROOM = 64  # tokens of a session beyond prompt and answer: a tree, and the last block's rest


@contextmanager
def running_systems(
    names: Sequence[str], options: BenchOptions, pair: Pair, kv_tokens: int, report: Report
) -> Iterator[dict[str, LocalCluster]]:
    """The named systems, started one after the other. Their caches hold `kv_tokens` each: idle ones are not free."""
    with ExitStack() as stack:
        systems: dict[str, LocalCluster] = {}
        for name in dict.fromkeys(names):
            flags = system_flags(name, options)
            report(f"starting the system '{name}'")
            systems[name] = stack.enter_context(
                LocalCluster(
                    ClusterOptions(
                        target=pair.target,
                        http_port=PortPicker().any_free(),
                        ssms=tuple(pair.ssms[: flags.max_ssms]),
                        num_drafters=flags.num_drafters,
                        run_dir=options.run_dir / name,
                        verifier_flags=("--kv-tokens", str(kv_tokens), *flags.verifier),
                        drafter_flags=(*SHARED_CORES_FLAGS, *flags.drafter),
                    )
                )
            )
        yield systems


def kv_tokens_for(prompt_lens: Sequence[int], options: BenchOptions) -> int:
    """Room for the longest prompts at the highest load, so that no generation waits for blocks."""
    count = options.max_concurrency
    longest = sorted(prompt_lens, reverse=True) * (count // len(prompt_lens) + 1)
    answer_len = options.max_tokens if count == 1 else max(options.max_tokens, options.load_tokens)
    return blocks_of(sum(longest[:count]) + count * (answer_len + _TREE_ROOM))


def blocks_of(num_tokens: int) -> int:
    """`num_tokens` rounded up to whole KV blocks, and never less than the smallest sensible cache."""
    return max(_MIN_KV_TOKENS, -(-num_tokens // _BLOCK) * _BLOCK)
