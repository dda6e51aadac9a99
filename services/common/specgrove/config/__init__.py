"""Settings: one frozen dataclass per service, read once and strictly from defaults, environment and flags.

    @dataclass(frozen=True, slots=True)
    class GatewayConfig:
        '''The gateway: faces the clients and routes to verifiers.'''
        http_port: int = setting(default=8000, minimum=0, maximum=65535, help="port of the OpenAI-compatible API")

    raise SystemExit(run_with_config(GatewayConfig, "gateway", serve))  # async def serve(config: GatewayConfig)

README.md in this folder has the rules.
"""

from specgrove.config.entry import run_with_config
from specgrove.config.load import load_config
from specgrove.config.setting import setting

__all__ = ["load_config", "run_with_config", "setting"]
