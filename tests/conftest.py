"""Fixtures for all tests come from plugins, each beside what it starts."""

import os

# Triton reads it while it is imported, and half of it imported before is neither: so it stands before everything else,
# whatever tests run in whatever order. Services on CPUs take no kernels unless they are told to.
os.environ["TRITON_INTERPRET"] = "1"

pytest_plugins = ["support.redis_server"]
