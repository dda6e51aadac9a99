"""Fixtures for all tests come from plugins, each beside what it starts."""

pytest_plugins = ["support.redis_server"]
