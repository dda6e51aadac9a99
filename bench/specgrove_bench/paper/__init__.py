"""The tables of the SpecInfer paper for a pair of ours: `python -m specgrove_bench.paper`, with bench/ on the path."""
