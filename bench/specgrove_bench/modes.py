"""The ways of decoding that are compared, and which running system serves each.

A static tree is a setting of the drafter and `fixed` one of the verifier, so modes that differ in them need a system of
their own (verifier, drafter, gateway, Redis; an idle one costs memory and no time). `off` is a flag of the request and
shares the system of `controller`: it is what a user of the default gets who switches speculation off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specgrove.tree import ExpansionConfig

if TYPE_CHECKING:
    from specgrove_bench.options import BenchOptions

PLAIN = "off"  # what every ratio is taken against
PREFIX_SYSTEM = "prefix"  # no mode: where cold and warm prefixes are timed
# Every prompt is asked many times, in turns by all modes: with a prefix cache only the first would pay for it.
_COLD = ("--prefix-cache", "off")


@dataclass(frozen=True, slots=True)
class ModeInfo:
    """What a mode is, in the words of the report."""

    title: str
    system: str  # modes of one system share its processes
    speculation: bool = True
    needs_ssm: bool = False


MODES: dict[str, ModeInfo] = {
    PLAIN: ModeInfo("speculation off", "default", speculation=False),
    "bare": ModeInfo("no drafter, node limit 0", "bare", speculation=False),
    "chain": ModeInfo("sequence, SSM only", "chain", needs_ssm=True),
    "tree": ModeInfo("static tree, SSM only", "tree", needs_ssm=True),
    "dynamic": ModeInfo("dynamic tree, SSM + prompt lookup, always the node limit", "dynamic"),
    "ahead": ModeInfo("dynamic tree, drafting ahead", "ahead", needs_ssm=True),
    "controller": ModeInfo("dynamic tree under the budget controller (the default)", "default"),
    "lookup": ModeInfo("prompt lookup only, budget controller", "lookup"),
}

QUICK_MODES = (PLAIN, "bare", "chain", "tree", "dynamic", "controller")
FULL_MODES = (PLAIN, "bare", "chain", "tree", "dynamic", "ahead", "controller")


@dataclass(frozen=True, slots=True)
class SystemFlags:
    """Flags of a system's verifier and drafter, beside those every system gets."""

    verifier: tuple[str, ...] = ()
    drafter: tuple[str, ...] = ()
    max_ssms: int | None = None  # None = all of the pool
    num_drafters: int = 1


def system_flags(system: str, options: BenchOptions) -> SystemFlags:
    """How to start the system that serves a mode."""
    limit = ("--max-nodes", str(options.max_nodes)) if options.max_nodes is not None else ()
    if system == PREFIX_SYSTEM:
        return SystemFlags(("--max-nodes", "0"), num_drafters=0)
    match system:
        case "bare":
            return SystemFlags((*_COLD, "--max-nodes", "0"), num_drafters=0)
        case "chain" | "tree":
            text = options.chain if system == "chain" else options.tree
            expansion = ExpansionConfig.parse(text)
            shape = ("--max-nodes", str(expansion.num_draft_nodes), "--max-depth", str(expansion.max_depth))
            drafter = ("--expansion", text, "--no-prompt-lookup")
            return SystemFlags((*_COLD, "--budget", "fixed", *shape), drafter, max_ssms=1)
        case "dynamic":
            return SystemFlags((*_COLD, "--budget", "fixed", *limit))
        case "ahead":
            return SystemFlags((*_COLD, "--budget", "fixed", *limit), ("--ahead", "on"))
        case "lookup":
            return SystemFlags((*_COLD, *limit), max_ssms=0)
    return SystemFlags((*_COLD, *limit))
