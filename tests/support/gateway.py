"""A whole gateway on free ports, in front of fake verifiers. A pytest plugin would hide it; tests build it by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai

from specgrove_gateway.__main__ import Ports, running
from specgrove_gateway.config import GatewayConfig
from support.fake_verifier import FakeVerifier

MODEL = "tiny"


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """Where it listens, and clients that reach it."""

    ports: Ports
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI

    async def chat(self, content: str = "Hello", **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}
        return await self.http.post("/v1/chat/completions", json=body)

    async def complete(self, prompt: Any = "Hello", **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"model": MODEL, "prompt": prompt, **fields})

    async def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by its name with labels."""
        page = (await self.http.get("/metrics")).text
        lines = [line.rsplit(" ", 1) for line in page.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, value in lines}


@asynccontextmanager
async def running_gateway(
    folder: Path, verifiers: Sequence[FakeVerifier], *, wait_ready: bool = True, **settings: Any
) -> AsyncIterator[RunningGateway]:
    """A ready gateway that knows `verifiers` statically (or by Redis, if `redis_url` is among the settings)."""
    if "redis_url" not in settings:
        settings["verifiers"] = tuple(verifier.address for verifier in verifiers)
    settings = {"http_port": 0, "grpc_port": 0, "drain_s": 1.0, **settings}
    config = GatewayConfig(tokenizer=str(folder), model_name=MODEL, **settings)
    async with running(config) as ports:
        url = f"http://127.0.0.1:{ports.http}"
        async with (
            httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as http,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=20) as client,
        ):
            if wait_ready:
                await until(lambda: _is_ready(http, len(verifiers)))
            yield RunningGateway(ports, http, client)


async def _is_ready(http: httpx.AsyncClient, num_verifiers: int) -> bool:
    page = (await http.get("/metrics")).text
    return f"specgrove:verifiers_healthy {float(num_verifiers)}" in page


async def until(condition: Any, timeout_s: float = 10.0) -> None:
    """Returns once `condition()`, plain or async, is true."""
    async with asyncio.timeout(timeout_s):
        while True:
            value = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return
            await asyncio.sleep(0.01)
