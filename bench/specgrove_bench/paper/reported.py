"""What the paper reports for its own pair, to stand beside ours: LLaMA-7B with a 68M SSM, five data sets.

SpecInfer (Miao et al., ASPLOS 2024, arXiv 2305.09781); Alpaca, CP, WebQA, CIP and PIQA, in this order.
"""

from __future__ import annotations

DATA_SETS = ("Alpaca", "CP", "WebQA", "CIP", "PIQA")
PAIR = "paper: LLaMA-7B, 68M SSM"

# Share of steps with the target's token among the SSM's first 1 to 5, a row a data set.
SUCCESS_GREEDY = (
    (0.68, 0.77, 0.81, 0.84, 0.85),
    (0.69, 0.79, 0.83, 0.86, 0.87),
    (0.62, 0.72, 0.77, 0.80, 0.82),
    (0.70, 0.81, 0.85, 0.88, 0.89),
    (0.63, 0.75, 0.79, 0.83, 0.85),
)
SUCCESS_STOCHASTIC = (
    (0.54, 0.81, 0.91, 0.95, 0.97),
    (0.56, 0.82, 0.92, 0.95, 0.97),
    (0.52, 0.80, 0.90, 0.94, 0.96),
    (0.57, 0.84, 0.92, 0.95, 0.97),
    (0.55, 0.82, 0.91, 0.95, 0.97),
)
# Tokens per step at widths 1 and 5.
WIDTHS_GREEDY = ((2.95, 3.43), (2.58, 3.69), (2.27, 3.07), (2.73, 3.91), (2.18, 3.21))
WIDTHS_STOCHASTIC = ((1.79, 2.38), (1.69, 2.28), (1.64, 2.21), (1.72, 2.29), (1.67, 2.21))
# Tokens per step at width 5, naive sampling and mss.
NAIVE_AND_MSS = ((1.87, 2.38), (1.80, 2.28), (1.73, 2.21), (1.79, 2.29), (1.73, 2.21))


def mean_of(rows: tuple[tuple[float, ...], ...]) -> tuple[float, ...]:
    """Column means over the data sets."""
    return tuple(sum(column) / len(rows) for column in zip(*rows, strict=True))
