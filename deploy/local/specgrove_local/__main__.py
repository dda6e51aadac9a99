"""`python -m specgrove_local`: the composition root of the demo."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType

from specgrove.config import load_config
from specgrove.errors import ConfigError, SpecgroveError
from specgrove_local.cluster import LocalCluster
from specgrove_local.config import LocalConfig
from specgrove_local.demo import addresses, run_demo
from specgrove_local.errors import LocalError
from specgrove_local.models import default_ssms, ensure_model, ensure_target
from specgrove_local.options import SHARED_CORES_FLAGS, ClusterOptions
from specgrove_local.run_dir import exclusive_run_dir
from specgrove_local.serve import serve_until_stopped

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2


def main() -> int:
    """The exit code: 0 after a clean end (Ctrl-C and SIGTERM included), 1 on failure, 2 on wrong settings."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        config = load_config(LocalConfig, service="local", argv=sys.argv[1:], environ=os.environ)
        return _run(config, redis_url=os.environ.get("REDIS_URL") or None)
    except ConfigError as error:
        print(f"specgrove local: {error.message}", file=sys.stderr)
        return EXIT_USAGE
    except SpecgroveError as error:
        _say(f"\nfailed: {error.message}")
        return EXIT_FAILED
    except KeyboardInterrupt:
        _say("stopped")
        return EXIT_OK


def _run(config: LocalConfig, *, redis_url: str | None) -> int:
    with exclusive_run_dir(Path(config.run_dir), keep_logs=config.keep_logs) as run_dir:
        options = _cluster_options(config, run_dir, redis_url)
        try:
            with LocalCluster(options, report=_say) as cluster:
                is_exact = run_demo(
                    cluster,
                    config.prompt,
                    max_tokens=config.max_tokens,
                    speculation=bool(options.num_drafters),
                    write=_write,
                )
                if not is_exact:
                    raise LocalError(f"speculation changed the answer; the logs are in {run_dir}")
                if not config.once:
                    _say(f"\n{addresses(cluster)}\n\nserving; Ctrl-C stops everything")
                    serve_until_stopped(cluster, _say)
        except KeyboardInterrupt:
            _say("\nstopped")
    return EXIT_OK


def _cluster_options(config: LocalConfig, run_dir: Path, redis_url: str | None) -> ClusterOptions:
    cache_dir = Path(config.cache_dir)
    if config.model is None:
        target = ensure_target(cache_dir, report=_say)
    else:
        target = ensure_model(Path(config.model), cache_dir, report=_say)
    num_drafters = config.drafters if config.speculation else 0
    ssms = tuple(map(Path, config.ssm)) or (default_ssms() if config.model is None else ())
    if num_drafters:
        names = ", ".join(folder.name for folder in ssms)
        _say(
            f"drafters: SSMs {names} and prompt lookup"
            if ssms
            else "drafters: prompt lookup only (no SSM given or shipped)"
        )
    return ClusterOptions(
        target=target,
        ssms=ssms,
        num_verifiers=config.verifiers,
        num_drafters=num_drafters,
        weights=config.weights,
        http_port=config.http_port,
        grpc_port=config.grpc_port,
        redis_url=redis_url,
        run_dir=run_dir,
        drafter_flags=SHARED_CORES_FLAGS,
    )


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(line: str) -> None:
    _write(line + "\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
