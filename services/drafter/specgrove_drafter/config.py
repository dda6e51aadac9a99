"""The settings of a drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specgrove.config import setting
from specgrove.errors import ConfigError, InvalidInput
from specgrove.tree import ExpansionConfig
from specgrove_drafter.members.member import MAX_MEMBERS
from specgrove_drafter.trees.growth import BestFirst


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """A drafter: proposes token trees to every verifier it knows."""

    # Members
    ssm: tuple[str, ...] = setting(default=(), help="SSMs: model folders, hub ids or GGUF files, comma separated")
    prompt_lookup: bool = setting(default=True, help="propose what followed earlier occurrences of the latest tokens")
    random_member: bool = setting(default=False, help="test aid: propose random trees, to show that output stays exact")
    random_member_seed: int = setting(default=0, minimum=0, help="test aid: seed of the random trees")
    tokenizer: str | None = setting(
        default=None, help="the target's folder, for the vocabulary that verifiers compare; default: the first SSM's"
    )
    stack_ssms: bool = setting(
        default=True, help="run SSMs of one shape in one forward and propose from the mean of their laws"
    )
    weights: Literal["auto", "float32", "fp16_packed", "int8_packed"] = setting(
        default="auto", help="how SSM matrices are kept"
    )
    attention: Literal["auto", "reference", "triton"] = setting(
        default="auto", help="paged Triton kernels, plain torch, or triton on CUDA devices where Triton is installed"
    )
    cuda_graphs: Literal["auto", "off"] = setting(
        default="auto", help="record decode steps as CUDA graphs where triton attends on a GPU, or never"
    )
    cpu_kernels: Literal["auto", "off"] = setting(
        default="auto", help="small operators on CPUs compiled where they can be, or always torch's own"
    )
    device: str = setting(default="cpu", help="where SSMs run: cpu or cuda")
    threads: int = setting(default=0, minimum=0, maximum=1024, help="CPU threads of a forward; 0 = one per core")

    # Trees
    expansion: str = setting(default="", help="static tree shape such as 1,1,3,1,1,1,1,1; empty = best-first")
    frontier_width: int = setting(default=4, minimum=1, maximum=256, help="best-first: nodes expanded in one forward")
    min_path_prob: float = setting(
        default=0.2, minimum=0.0, maximum=0.99, help="best-first: stop when the likeliest node to expand is below this"
    )
    naive_children: Literal["topk", "sampled"] = setting(
        default="topk", help="rule naive: propose the likeliest children, or draw them from the SSM's law"
    )

    # Drafting ahead
    ahead: Literal["off", "on", "auto"] = setting(
        default="auto", help="draft under likely outcomes while a tree is verified; auto: where it shortens a step"
    )
    max_ahead_outcomes: int = setting(default=8, minimum=1, maximum=64, help="outcomes drafted under, for each tree")
    min_ahead_prob: float = setting(
        default=0.02, minimum=0.0, maximum=1.0, help="outcomes less likely than this are not drafted under"
    )
    max_ahead_share: float = setting(
        default=0.75, minimum=0.0, maximum=1.0, help="drafting ahead pauses while more of all forwards are wasted on it"
    )

    # Verifiers
    verifiers: tuple[str, ...] = setting(default=(), help="verifiers to dial, host:port, comma separated")
    redis_url: str | None = setting(
        default=None, secret=True, help="Redis where verifiers are found and this pod is listed"
    )

    # Limits
    max_sessions: int = setting(default=256, minimum=1, maximum=65536, help="sessions mirrored for one verifier")
    max_session_tokens: int = setting(default=131072, minimum=16, help="longest context that is mirrored, tokens")
    max_batch: int = setting(default=16, minimum=1, maximum=1024, help="sessions drafted together")
    kv_tokens: int = setting(default=65536, minimum=64, help="size of each SSM's KV cache, tokens over all sessions")

    # The process
    host: str = setting(default="127.0.0.1", help="address to listen on for health checks")
    port: int = setting(default=50061, minimum=0, maximum=65535, help="gRPC port of health checks; 0 = any free one")
    metrics_port: int = setting(default=9461, minimum=0, maximum=65535, help="HTTP port of /metrics; 0 = any free one")
    advertise_address: str | None = setting(default=None, help="host:port that peers see in Redis; default: host:port")
    pod_id: str | None = setting(default=None, help="name of this pod; default: made from the host's name")
    log_level: Literal["debug", "info", "warning", "error"] = setting(default="info", help="least severe level logged")

    def __post_init__(self) -> None:
        problems = []
        if not self.ssm and not self.prompt_lookup and not self.random_member:
            problems.append("--no-prompt-lookup without --ssm leaves no member; name at least one SSM")
        if len(self.ssm) + 2 > MAX_MEMBERS:
            problems.append(f"--ssm names {len(self.ssm)} models; at most {MAX_MEMBERS - 2} fit in one drafter")
        if not self.verifiers and not self.redis_url:
            problems.append("nobody to draft for: give --verifiers host:port or --redis-url")
        if self.tokenizer is None and not self.ssm:
            problems.append("--tokenizer is required without --ssm: verifiers compare vocabularies")
        for address in self.verifiers:
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                problems.append(f"--verifiers {address!r} is not host:port")
        try:
            if self.expansion:
                ExpansionConfig.parse(self.expansion)
        except InvalidInput as error:
            problems.append(f"--expansion: {error.message}")
        if problems:
            raise ConfigError(problems)

    @property
    def best_first(self) -> BestFirst:
        return BestFirst(frontier_width=self.frontier_width, min_path_prob=self.min_path_prob)
