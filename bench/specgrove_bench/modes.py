"""The ways of decoding that are compared, and which running system serves each.

A static tree is a setting of the drafter and `fixed` one of the verifier, so modes that differ in them need a system of
their own (verifier, drafter, gateway, Redis; an idle one costs memory and no time). `off` is a flag of the request and
shares the system of `dynamic`: it is what a user of the default gets who switches speculation off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specgrove.tree import ExpansionConfig

if TYPE_CHECKING:
    from specgrove_bench.options import BenchOptions


@dataclass(frozen=True, slots=True)
class ModeInfo:
    """What a mode is, in the words of the report."""

    title: str
    system: str  # modes of one system share its processes
    speculation: bool = True


MODES: dict[str, ModeInfo] = {
    "off": ModeInfo("speculation off", "default", speculation=False),
    "chain": ModeInfo("plain chain, SSM only", "chain"),
    "tree": ModeInfo("static tree, SSM only", "tree"),
    "dynamic": ModeInfo("dynamic tree, SSM + prompt lookup, measured budget (the default)", "default"),
    "dynamic-fixed": ModeInfo("dynamic tree, SSM + prompt lookup, always the node limit", "dynamic-fixed"),
    "lookup": ModeInfo("prompt lookup only, measured budget", "lookup"),
}

DEFAULT_MODES = ("off", "chain", "tree", "dynamic")


@dataclass(frozen=True, slots=True)
class SystemFlags:
    """Flags of a system's verifier and drafter, beside those every system gets."""

    verifier: tuple[str, ...] = ()
    drafter: tuple[str, ...] = ()
    max_ssms: int | None = None  # None = all of the pool


def system_flags(system: str, options: BenchOptions) -> SystemFlags:
    """How to start the system that serves a mode."""
    limit = ("--max-nodes", str(options.max_nodes)) if options.max_nodes is not None else ()
    match system:
        case "chain" | "tree":
            text = options.chain if system == "chain" else options.tree
            expansion = ExpansionConfig.parse(text)
            shape = ("--max-nodes", str(expansion.num_draft_nodes), "--max-depth", str(expansion.max_depth))
            return SystemFlags(("--budget", "fixed", *shape), ("--expansion", text, "--no-prompt-lookup"), max_ssms=1)
        case "dynamic-fixed":
            return SystemFlags(("--budget", "fixed", *limit))
        case "lookup":
            return SystemFlags(limit, max_ssms=0)
    return SystemFlags(limit)
