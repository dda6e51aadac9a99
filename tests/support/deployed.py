"""What is deployed: where its files lie, and the settings that its services know."""

from __future__ import annotations

from pathlib import Path

from specgrove.config.setting import Setting, settings_of
from specgrove_drafter.config import DrafterConfig
from specgrove_gateway.config import GatewayConfig
from specgrove_verifier.config import VerifierConfig

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
SERVICES = ("verifier", "drafter", "gateway")
CONFIGS: dict[str, type] = {"verifier": VerifierConfig, "drafter": DrafterConfig, "gateway": GatewayConfig}


def known_settings(service: str) -> dict[str, Setting]:
    return {one.environment_name(service): one for one in settings_of(CONFIGS[service])}
