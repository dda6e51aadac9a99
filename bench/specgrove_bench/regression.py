"""Comparing two runs by their ratios, noise included: ratios are what two machines, or two days, have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specgrove.errors import InvalidInput
from specgrove_bench.result import FORMAT

# Options that change what a ratio means; others may differ.
_MUST_AGREE = (
    "max_tokens",
    "load_tokens",
    "num_prompts",
    "requests_per_client",
    "temperature",
    "top_p",
    "ignore_eos",
    "chain",
    "tree",
    "max_nodes",
    "prefix_tokens",
)


def read_result(path: Path) -> dict[str, Any]:
    """The JSON of a run. Raises `InvalidInput` for another file, or one of another format."""
    try:
        result = json.loads(path.read_text())
    except ValueError as error:
        raise InvalidInput(f"{path} is no JSON of a bench run: {error}") from error
    written = result.get("format") if isinstance(result, dict) else None
    if written != FORMAT:
        raise InvalidInput(
            f"{path} has format {written}, this bench writes {FORMAT}: run the bench again at that commit"
        )
    return dict(result)


def regressions(later: Mapping[str, Any], earlier: Mapping[str, Any], tolerance: float) -> list[str]:
    """One line for each ratio of both runs that got worse by more than `tolerance` of it and more than the noise.

    The noise is the two medians' notches together; a ratio with a single value has none, and counts by its value.
    """
    found = []
    for key, now in later["ratios"].items():
        was = earlier["ratios"].get(key)
        if was is None:
            continue
        loss = now["median"] - was["median"] if now["better"] == "less" else was["median"] - now["median"]
        if loss > tolerance * was["median"] and loss > now["notch"] + was["notch"]:
            found.append(f"{key} {_in_words(now)}, was {_in_words(was)}")
    return found


def differing_options(later: Mapping[str, Any], earlier: Mapping[str, Any]) -> list[str]:
    """One line for each option under which two runs cannot well be compared."""
    now, was = later["options"], earlier["options"]
    return [f"{name} {now.get(name)}, was {was.get(name)}" for name in _MUST_AGREE if now.get(name) != was.get(name)]


def _in_words(ratio: Mapping[str, Any]) -> str:
    return f"{ratio['median']:.2f} ±{ratio['notch']:.2f}"
