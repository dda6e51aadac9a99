"""The verifier's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specgrove.config import setting
from specgrove.errors import ConfigError


@dataclass(frozen=True, slots=True)
class VerifierConfig:
    """The verifier: holds the target model, checks token trees, owns the committed tokens."""

    model: str = setting(help="target: a safetensors folder, a GGUF file or a hub id")
    model_name: str = setting("", help="name that clients use; empty = last part of --model")
    host: str = setting("127.0.0.1", help="address to listen on")
    port: int = setting(50051, minimum=0, maximum=65535, help="gRPC port; 0 picks a free one")
    metrics_port: int = setting(0, minimum=0, maximum=65535, help="Prometheus port; 0 picks a free one")
    pod_id: str = setting("", help="name of this pod in the registry; empty = host name and a random part")
    advertise_address: str = setting("", help="host:port that other pods dial; empty = host:port listened on")
    redis_url: str | None = setting(None, secret=True, help="registry of pods; none = known by static lists only")
    weights: Literal["auto", "float32", "fp16_packed", "int8_packed"] = setting(
        "auto", help="how matrices are kept (README)"
    )
    decoder: Literal["auto", "lean", "transformers"] = setting(
        "auto", help="who runs the model: lean (Llama-shaped models), its own transformers code, or lean where it can"
    )
    attention: Literal["auto", "reference", "triton"] = setting(
        "auto", help="paged Triton kernels, plain torch, or triton on CUDA devices where Triton is installed"
    )
    cuda_graphs: Literal["auto", "off"] = setting(
        "auto", help="record decode steps as CUDA graphs where triton attends on a GPU, or never"
    )
    cpu_kernels: Literal["auto", "off"] = setting(
        "auto", help="small operators on CPUs compiled where they can be, or always torch's own"
    )
    device: str = setting("cpu", help="torch device")
    threads: int = setting(0, minimum=0, maximum=1024, help="CPU threads of torch; 0 = torch's own choice")
    kv_tokens: int = setting(16384, minimum=64, help="tokens the KV cache holds over all sessions")
    block_size: int = setting(16, minimum=1, maximum=1024, help="tokens in a KV block")
    max_sessions: int = setting(64, minimum=1, help="generations running at once; more wait")
    max_waiting: int = setting(256, minimum=0, help="generations waiting; more are refused")
    max_open_tokens: int = setting(
        0, minimum=0, help="tokens that running and waiting generations came with; more are refused; 0 = 16 x kv_tokens"
    )
    max_waiting_s: float = setting(
        120.0, minimum=0, maximum=86_400, help="longest wait for the first step; then it is refused; 0 = no limit"
    )
    priority_ageing_s: float = setting(
        10.0, minimum=0.001, maximum=3_600, help="seconds of waiting that are worth one level of priority"
    )
    prefix_cache: Literal["on", "off"] = setting(
        "on", help="reuse keys and values of tokens that another request began with"
    )
    max_step_rows: int = setting(256, minimum=8, help="rows of a step: the token budget")
    max_nodes: int = setting(8, minimum=0, maximum=512, help="draft nodes of a tree, root not counted; 0 = off")
    max_depth: int = setting(5, minimum=1, maximum=64, help="depth of a tree")
    budget: Literal["measured", "fixed"] = setting("measured", help="draft nodes by measured cost, or always the limit")
    pacing: Literal["auto", "together", "in_turns"] = setting(
        "auto", help="steps of all sessions, of half of them while the others' drafts are made, or by measured rate"
    )
    cost_cache: str = setting(
        "auto", help="folder where measured step costs are kept; auto = in the user's cache, empty = nowhere"
    )
    rule: Literal["coupled", "mss", "naive"] = setting(
        "coupled", help="how drafted paths are accepted, for requests that name no rule (README)"
    )
    drafters_per_session: int = setting(1, minimum=1, maximum=16, help="drafters that draft for one session")
    max_draft_wait_ms: float = setting(100.0, minimum=0, maximum=10_000, help="longest wait for a draft after a commit")
    draft_wait: Literal["auto", "fixed"] = setting("auto", help="wait by measured latency, or always the limit")
    drain_s: float = setting(20.0, minimum=0, maximum=600, help="time for running generations to end at a stop")
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", help="least severe log line")

    def __post_init__(self) -> None:
        problems = []
        if self.kv_tokens % self.block_size:
            problems.append("kv_tokens must be a multiple of block_size")
        if 0 < self.max_open_tokens < self.kv_tokens:
            problems.append("max_open_tokens must be 0 or at least kv_tokens, or a prompt that fits is always refused")
        if self.max_nodes + 1 > self.max_step_rows:
            problems.append("max_step_rows must be at least max_nodes + 1, or no tree fits a step")
        if self.advertise_address and ":" not in self.advertise_address:
            problems.append("advertise_address must be host:port")
        if self.redis_url and not self.advertise_address and self.host in ("0.0.0.0", "::"):
            problems.append(f"advertise_address is needed beside redis_url: nobody can dial {self.host}")
        if problems:
            raise ConfigError(problems)
