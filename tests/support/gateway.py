"""A whole gateway on free ports, in front of fake verifiers. A pytest plugin would hide it; tests build it by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
import openai

from specgrove.text import Tokenizer
from specgrove_gateway.__main__ import Ports, running
from specgrove_gateway.config import GatewayConfig
from support.fake_verifier import FakeVerifier
from support.waiting import until

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


class Reachable(Protocol):
    """A verifier, real or not, that can be dialled."""

    @property
    def address(self) -> str: ...


@asynccontextmanager
async def running_gateway(
    folder: Path, verifiers: Sequence[Reachable], *, wait_ready: bool = True, **settings: Any
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


@asynccontextmanager
async def gateway_that_says_hello_world(folder: Path) -> AsyncIterator[RunningGateway]:
    """In front of a verifier that answers "Hello world" to everything (and goes on where the end is to be ignored) and
    must never see a token that does not exist; bodies over 64 KiB are refused."""
    tokenizer = Tokenizer.load(folder)
    said = [*tokenizer.encode("Hello world"), 2]
    verifier = FakeVerifier(tokenizer, lambda prompt, seed: said * 256)  # longer than its context
    await verifier.start()
    async with running_gateway(folder, [verifier], max_body_bytes=64 * 1024) as gateway:
        yield gateway
        assert all(max(request.prompt_token_ids) < tokenizer.vocab_size for request in verifier.requests)
    await verifier.stop()


async def says_hello_world(gateway: RunningGateway) -> bool:
    """Whether an ordinary chat is answered."""
    answer = await gateway.chat()
    return bool(answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"] == "Hello world")


async def _is_ready(http: httpx.AsyncClient, num_verifiers: int) -> bool:
    page = (await http.get("/metrics")).text
    return f"specgrove:verifiers_healthy {float(num_verifiers)}" in page
