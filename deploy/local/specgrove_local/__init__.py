"""The whole system on one machine: Redis, verifiers, drafters and the gateway as processes on loopback.

`python -m specgrove_local` is the demo behind `make run`; `LocalCluster` is the same thing for tests and benches.
"""
