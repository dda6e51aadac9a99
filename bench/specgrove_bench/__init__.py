"""Latency and throughput over the real services: speculation off, chain, trees, controller, and other engines."""
