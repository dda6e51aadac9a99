"""The running systems of a bench: one of verifier, drafter, gateway and Redis for each set of flags."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from specgrove_bench.modes import MODES, system_flags
from specgrove_bench.options import BenchOptions
from specgrove_local.cluster import LocalCluster
from specgrove_local.options import SHARED_CORES_FLAGS, ClusterOptions
from specgrove_local.ports import PortPicker

Report = Callable[[str], None]
_MIN_KV_TOKENS = 4096
_BLOCK = 16  # tokens in a KV block


@contextmanager
def running_systems(
    names: Sequence[str], options: BenchOptions, target: Path, ssms: Sequence[Path], report: Report
) -> Iterator[dict[str, LocalCluster]]:
    """All systems that `names` (modes) need, by system name, started one after the other."""
    with ExitStack() as stack:
        systems: dict[str, LocalCluster] = {}
        for name in dict.fromkeys(MODES[mode].system for mode in names):
            flags = system_flags(name, options)
            report(f"starting the system '{name}'")
            systems[name] = stack.enter_context(
                LocalCluster(
                    ClusterOptions(
                        target=target,
                        http_port=PortPicker().any_free(),
                        ssms=tuple(ssms[: flags.max_ssms]),
                        run_dir=options.run_dir / name,
                        verifier_flags=("--kv-tokens", str(_kv_tokens(options)), *flags.verifier),
                        drafter_flags=(*SHARED_CORES_FLAGS, *flags.drafter),
                    )
                )
            )
        yield systems


def _kv_tokens(options: BenchOptions) -> int:
    """Room for one session: several systems run side by side, and a cache of the default size is most of a gigabyte."""
    longest = options.max_prompt_tokens + options.max_tokens + 64  # and a tree
    return max(_MIN_KV_TOKENS, -(-longest // _BLOCK) * _BLOCK)
