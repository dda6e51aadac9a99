"""Sums of a verifier's histograms, read before and after a load: time and rows of a step, and from commit to tree."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.request import ProxyHandler, build_opener

_TIMEOUT_S = 5.0
_FALLBACKS = "specgrove:draft_fallbacks_total"


@dataclass(frozen=True, slots=True)
class PageSums:
    """Seconds and counts since the verifier started, or (by subtraction) of one answer."""

    step_s: float = 0.0
    num_steps: float = 0.0
    step_rows: float = 0.0
    draft_s: float = 0.0
    num_drafts: float = 0.0
    num_fallbacks: float = 0.0  # steps that went on without the draft they had asked for

    def __sub__(self, other: PageSums) -> PageSums:
        return PageSums(
            self.step_s - other.step_s,
            self.num_steps - other.num_steps,
            self.step_rows - other.step_rows,
            self.draft_s - other.draft_s,
            self.num_drafts - other.num_drafts,
            self.num_fallbacks - other.num_fallbacks,
        )

    def __add__(self, other: PageSums) -> PageSums:
        return PageSums(
            self.step_s + other.step_s,
            self.num_steps + other.num_steps,
            self.step_rows + other.step_rows,
            self.draft_s + other.draft_s,
            self.num_drafts + other.num_drafts,
            self.num_fallbacks + other.num_fallbacks,
        )


def read_sums(metrics_url: str) -> PageSums:
    with build_opener(ProxyHandler({})).open(metrics_url, timeout=_TIMEOUT_S) as page:
        lines = page.read().decode().splitlines()
    sample = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line and line[0] != "#")}
    return PageSums(
        step_s=sample.get("specgrove:step_seconds_sum", 0.0),
        num_steps=sample.get("specgrove:step_seconds_count", 0.0),
        step_rows=sample.get("specgrove:step_rows_sum", 0.0),
        draft_s=sample.get("specgrove:draft_round_trip_seconds_sum", 0.0),
        num_drafts=sample.get("specgrove:draft_round_trip_seconds_count", 0.0),
        num_fallbacks=sum(value for name, value in sample.items() if name.startswith(_FALLBACKS)),
    )
