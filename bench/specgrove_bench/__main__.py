"""`python -m specgrove_bench`, with bench/ on the path: what `make bench` runs."""

import sys

from specgrove_bench.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
