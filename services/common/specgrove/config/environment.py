"""The environment, cut into settings: `SPECGROVE_<SERVICE>_<FIELD>`. Anything else under `SPECGROVE_` is a problem.

Except the variables that Kubernetes puts into every pod of a namespace for a Service named, say, specgrove-verifier
(SPECGROVE_VERIFIER_SERVICE_HOST, SPECGROVE_VERIFIER_PORT=tcp://10.0.0.7:50051 and so on): nobody misspelt those.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specgrove.config.flags import suggestion
from specgrove.config.setting import Setting

PREFIX = "SPECGROVE_"
SERVICES = ("VERIFIER", "DRAFTER", "GATEWAY", "LOCAL")

_SERVICE_LINK = re.compile(r".*_(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)$")
_SERVICE_LINK_VALUE = re.compile(r"(tcp|udp)://")


@dataclass(slots=True)
class ParsedEnvironment:
    """What the environment says: raw texts by setting name, and what is wrong with it."""

    texts: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def parse_environment(settings: Sequence[Setting], service: str, environ: Mapping[str, str]) -> ParsedEnvironment:
    """Reads the variables of `service`, leaves those of its sister services alone and reports every other one."""
    own = {known.environment_name(service): known for known in settings}
    parsed = ParsedEnvironment()
    for name in sorted(environ):
        if not name.startswith(PREFIX):
            continue
        if _is_service_link(name, environ[name]):
            continue
        if name in own:
            parsed.texts[own[name].name] = environ[name]
        elif name.startswith(f"{PREFIX}{service.upper()}_"):
            parsed.problems.append(f"{name}: the {service} has no such setting" + suggestion(name, list(own)))
        elif not any(name.startswith(f"{PREFIX}{other}_") for other in SERVICES):
            parsed.problems.append(
                f"{name}: no such service; names are {PREFIX}<SERVICE>_<SETTING> with SERVICE one of "
                + ", ".join(SERVICES)
                + suggestion(name.removeprefix(PREFIX).partition("_")[0], SERVICES)
            )
    return parsed


def _is_service_link(name: str, value: str) -> bool:
    return _SERVICE_LINK.match(name) is not None or (
        name.endswith("_PORT") and _SERVICE_LINK_VALUE.match(value) is not None
    )
