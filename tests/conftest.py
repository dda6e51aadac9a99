"""Fixtures for all tests come from plugins, each beside what it starts."""

import os

# Triton reads it module by module while it is imported, so it stands before everything else, in whatever order tests
# run. Services that inherit it take no notice: on CPUs they attend in plain torch unless they are told otherwise.
os.environ["TRITON_INTERPRET"] = "1"

pytest_plugins = ["support.redis_server"]
