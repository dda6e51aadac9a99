"""The checks in Triton's interpreter: `TRITON_INTERPRET=1 python -m specgrove_bench.gpu_check.interpreted OUT`."""

from __future__ import annotations

import sys

from specgrove_bench.gpu_check.cli import check_interpreted, finish
from specgrove_bench.gpu_check.options import parse

if __name__ == "__main__":
    sys.exit(finish(check_interpreted(), parse(["--out", sys.argv[1]])))
