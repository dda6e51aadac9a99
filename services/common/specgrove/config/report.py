"""What `--help` and `--print-config` print, from the same settings that are read."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass

from specgrove.config.setting import Setting
from specgrove.config.values import BoolKind, format_value

_MASK = "***"
_URL_PASSWORD = re.compile(r"(?P<head>[a-z][a-z0-9+.-]*://[^/@\s]*?:)[^/@\s]+(?=@)")


@dataclass(frozen=True, slots=True)
class Resolved:
    """A setting with its value and the source of the value: `default`, `environment NAME` or `flag --name`."""

    setting: Setting
    value: object
    source: str


def config_text(resolved: Sequence[Resolved]) -> str:
    """One line for each setting: name, value and source. Secrets and passwords inside URLs are masked."""
    rows = [(found.setting.name, _shown(found), found.source) for found in resolved]
    name_width = max((len(name) for name, _, _ in rows), default=0)
    value_width = max((len(value) for _, value, _ in rows), default=0)
    return "".join(f"{name:<{name_width}} = {value:<{value_width}}  # {source}\n" for name, value, source in rows)


def _shown(found: Resolved) -> str:
    if found.setting.is_secret and found.value not in (None, "", ()):
        return _MASK
    return _URL_PASSWORD.sub(rf"\g<head>{_MASK}", format_value(found.value))


def help_text(config_class: type, service: str, settings: Sequence[Setting]) -> str:
    """What the service is, and for every setting its flag, its variable, its default and what it means."""
    about = (inspect.getdoc(config_class) or "").split("\n\n")[0].replace("\n", " ")
    rule = "Every setting is a flag or an environment variable; the flag wins."
    lines = [f"specgrove {service}: {about}", "", rule, ""]
    for known in settings:
        lines.append(f"  {_usage(known)}")
        lines.append(f"      {_described(known)}")
        lines.append(f"      environment: {known.environment_name(service)}")
    lines += [
        "  --print-config",
        "      print every value and where it came from, then exit",
        "  --help, -h",
        "      print this text, then exit",
    ]
    return "\n".join(lines) + "\n"


def _usage(known: Setting) -> str:
    if isinstance(known.kind, BoolKind):
        return f"{known.flag} / {known.negative_flag}"
    return f"{known.flag} {known.kind.label}"


def _described(known: Setting) -> str:
    facts = ["required"] if known.is_required else [f"default: {_default(known)}"]
    if known.minimum is not None:
        facts.append(f"at least {known.minimum:g}")
    if known.maximum is not None:
        facts.append(f"at most {known.maximum:g}")
    return f"{known.help} ({'; '.join(facts)})".strip()


def _default(known: Setting) -> str:
    return _shown(Resolved(known, known.default, "default")) or "empty"
