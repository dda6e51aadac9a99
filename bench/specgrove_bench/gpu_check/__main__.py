"""`python -m specgrove_bench.gpu_check`, with bench/ and kernels/ on the path: what `make gpu-check` runs."""

import sys

from specgrove_bench.gpu_check.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
