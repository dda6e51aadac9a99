"""The gateway's settings: one frozen value, read once by `specgrove.config`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specgrove.config import setting
from specgrove.errors import ConfigError


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Everything the gateway can be told. At least one source of verifiers is needed."""

    tokenizer: str = setting(default="", help="folder of the target model: tokenizer.json and chat template")
    model_name: str = setting(default="specgrove", help="the model id clients name in their requests")
    host: str = setting(default="127.0.0.1", help="address both faces listen on")
    http_port: int = setting(default=8000, minimum=0, maximum=65535, help="OpenAI HTTP port; 0 picks a free one")
    grpc_port: int = setting(default=8001, minimum=0, maximum=65535, help="gRPC port; 0 picks a free one")
    verifiers: tuple[str, ...] = setting(default=(), help="static verifiers, host:port,host:port,...")
    redis_url: str = setting(default="", help="sessions and discovery; empty works with static verifiers only")
    session_ttl_s: int = setting(default=3600, minimum=1, help="how long an idle session keeps its verifier, seconds")
    pod_ttl_s: int = setting(default=5, minimum=1, help="a verifier without a heartbeat for so long is gone, seconds")
    max_running: int = setting(default=256, minimum=1, help="generations at once")
    max_waiting: int = setting(default=512, minimum=0, help="requests that may wait for a slot; more get 429")
    max_wait_s: float = setting(default=30.0, minimum=0.0, help="longest wait for a slot, seconds; then 429")
    request_timeout_s: float = setting(default=1800.0, minimum=1.0, help="longest generation, seconds")
    max_attempts: int = setting(default=4, minimum=1, help="verifiers tried per generation, first one included")
    failover_wait_s: float = setting(default=5.0, minimum=0.0, help="how long to wait for any verifier, seconds")
    max_body_bytes: int = setting(default=1024 * 1024, minimum=1024, help="largest HTTP body and gRPC message")
    heartbeat_s: float = setting(default=10.0, minimum=0.05, help="SSE comment after so long without a token, seconds")
    drain_s: float = setting(default=20.0, minimum=0.0, help="time for running answers when stopped, seconds")
    log_level: str = setting(default="info", help="debug, info, warning or error")

    def __post_init__(self) -> None:
        problems = []
        if not self.tokenizer:
            problems.append("tokenizer: give the folder of the target model (its tokenizer.json is read)")
        elif not Path(self.tokenizer).is_dir():
            problems.append(f"tokenizer: {self.tokenizer} is not a folder")
        if not self.model_name:
            problems.append("model_name: must not be empty")
        if not self.verifiers and not self.redis_url:
            problems.append("verifiers: give host:port addresses, or redis_url to discover them")
        if problems:
            raise ConfigError(problems)
