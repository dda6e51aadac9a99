"""From options to contenders: systems and servers started, clients made; what is missing is left out with a line."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

from specgrove_bench.contender import ClosableClient, Contender, Pair
from specgrove_bench.engines.llama_cpp import llama_cpp_server
from specgrove_bench.engines.openai_client import OpenAIClient
from specgrove_bench.engines.server import EngineMissing, EngineServer, running
from specgrove_bench.engines.transformers_engine import TransformersClient, TransformersTarget
from specgrove_bench.engines.vllm import vllm_server
from specgrove_bench.gateway import GatewayClient
from specgrove_bench.modes import MODES
from specgrove_bench.options import ROOT, BenchOptions
from specgrove_bench.plan import Competitor
from specgrove_bench.systems import running_systems
from specgrove_local.ports import PortPicker

Report = Callable[[str], None]
_HOMES = ROOT / ".cache" / "engines"
_SPARE_TOKENS = 64


async def line_up(
    options: BenchOptions, pair: Pair, kv_tokens: int, report: Report, stack: AsyncExitStack
) -> list[Contender]:
    """All contenders, ready to be asked; everything that was started ends with `stack`."""
    others = _transformers(options, pair, report)  # before our services: loading takes both cores
    others += await _servers(options, pair, report, stack)
    names = [MODES[mode].system for mode in options.modes]
    systems = stack.enter_context(running_systems(names, options, pair, kv_tokens, report))
    clients = {name: GatewayClient(system.gateway_grpc_address) for name, system in systems.items()}
    for client in clients.values():
        stack.push_async_callback(client.close)
    ours = [
        Contender(
            Competitor(mode),
            _title(mode, options),
            clients[MODES[mode].system],
            MODES[mode].speculation,
            systems[MODES[mode].system].verifiers[0].metrics_url,
        )
        for mode in options.modes
    ]
    return [*ours, *others]


def _title(mode: str, options: BenchOptions) -> str:
    shape = {"chain": options.chain, "tree": options.tree}.get(mode)
    return MODES[mode].title + (f" <{shape}>" if shape else "")


def _transformers(options: BenchOptions, pair: Pair, report: Report) -> list[Contender]:
    wanted = [name for name in options.engines if name in ("transformers", "assisted")]
    if not wanted or not options.transformers_prompts:
        return []
    report("loading the target with transformers")
    target = TransformersTarget(pair.target)
    found = []
    for name in wanted:
        if name == "assisted" and not pair.ssms:
            report("assisted generation is left out: there is no SSM")
            continue
        ssm = pair.ssms[0] if name == "assisted" else None
        title = "transformers generate, float32" if ssm is None else "transformers assisted, float32, same SSM"
        found.append(
            Contender(
                Competitor(
                    name,
                    max_concurrency=1,
                    max_prompts=options.transformers_prompts,
                    max_tokens=options.transformers_tokens,
                ),
                title,
                TransformersClient(target, ssm, options.assistant_tokens),
            )
        )
    return found


async def _servers(options: BenchOptions, pair: Pair, report: Report, stack: AsyncExitStack) -> list[Contender]:
    found: list[Contender] = []
    for name, title in (
        ("llama.cpp", "llama.cpp, GGUF"),
        ("vllm", "vLLM, float32"),
        ("vllm-bf16", "vLLM, bfloat16"),
    ):
        if name not in options.engines:
            continue
        try:
            server = _server(name, options, pair)
        except EngineMissing as missing:
            report(f"{name} is left out: {missing.message}")
            continue
        report(f"starting {name}")
        stack.enter_context(running(server, pair.target, options.run_dir))
        client: ClosableClient = OpenAIClient(server.base_url, server.model, server.extra_body)
        stack.push_async_callback(client.close)
        found.append(Contender(Competitor(name), title, client))
    return found


def _server(name: str, options: BenchOptions, pair: Pair) -> EngineServer:
    max_model_len = options.max_prompt_tokens + options.max_tokens + _SPARE_TOKENS
    port = PortPicker().any_free()
    if name == "llama.cpp":
        return llama_cpp_server(
            pair.gguf,
            given=options.llama_server,
            home=_HOMES / "llama_cpp",
            port=port,
            max_model_len=max_model_len,
            max_concurrency=options.max_concurrency,
        )
    return vllm_server(
        pair.target,
        given=options.vllm,
        home=_HOMES / "vllm",
        port=port,
        dtype="float32" if name == "vllm" else "bfloat16",
        max_model_len=max_model_len,
        max_concurrency=options.max_concurrency,
    )
