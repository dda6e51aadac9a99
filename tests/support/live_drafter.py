"""A whole drafter in this process, over tiny models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from specgrove.session import Redis
from specgrove.telemetry import CollectorRegistry
from specgrove_drafter.build import build_drafter
from specgrove_drafter.config import DrafterConfig
from specgrove_drafter.drafter import Drafter


def drafter_config(ssms: Sequence[Path], verifiers: Sequence[str], **settings: Any) -> DrafterConfig:
    """Settings for tiny SSMs; `settings` are on top."""
    defaults = {"weights": "float32", "threads": 1, "kv_tokens": 2048}
    return DrafterConfig(ssm=tuple(map(str, ssms)), verifiers=tuple(verifiers), **(defaults | settings))


@asynccontextmanager
async def running_drafter(
    config: DrafterConfig, registry: CollectorRegistry | None = None, *, redis: Redis | None = None
) -> AsyncIterator[Drafter]:
    """`drafter-1`, started; stopped at the end."""
    drafter = build_drafter(
        config, registry or CollectorRegistry(), pod_id="drafter-1", address="127.0.0.1:1", redis=redis
    )
    await drafter.start()
    try:
        yield drafter
    finally:
        await drafter.stop()
