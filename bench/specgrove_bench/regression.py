"""Comparing with an earlier run by ratios: they are what two machines, or one machine on two days, have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specgrove_bench.report import Result


def regressions(result: Result, earlier: Path, tolerance: float) -> list[str]:
    """One line for each ratio that is worse than in the JSON `earlier` by more than `tolerance` of it."""
    before: dict[str, Any] = json.loads(earlier.read_text())
    found = []
    for mode, figures in result.modes.items():
        old = before["modes"].get(mode)
        if old is None or mode == "off":
            continue
        for name, now in (("speedup", figures.speedup), ("mean_accepted_len", figures.mean_accepted_len)):
            was = old[name]
            if was and now is not None and now < was * (1 - tolerance):
                found.append(f"{mode}: {name} {now:.2f}, was {was:.2f}")
    if result.reference and before.get("transformers"):
        was, now = before["transformers"]["ratio_to_off"], result.reference.ratio_to_off
        if now < was * (1 - tolerance):
            found.append(f"off: {now:.2f} times as fast as transformers, was {was:.2f}")
    return found
