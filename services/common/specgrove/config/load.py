"""From defaults, environment and flags to one config object, or one error that names every problem."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from typing import Any, TypeVar

from specgrove.config.environment import SERVICES, parse_environment
from specgrove.config.flags import parse_flags
from specgrove.config.report import Resolved, config_text, help_text
from specgrove.config.setting import Setting, settings_of
from specgrove.errors import ConfigError, SpecgroveError

ConfigT = TypeVar("ConfigT")


def load_config(cls: type[ConfigT], *, service: str, argv: Sequence[str], environ: Mapping[str, str]) -> ConfigT:
    """An instance of `cls` from its defaults, overridden by the environment, overridden by flags.

    `service` is one of verifier, drafter, gateway, local. `--help` and `--print-config` print to stdout and raise
    SystemExit(0). Raises ConfigError with every problem at once, those that `cls` itself raises included.
    """
    if service.upper() not in SERVICES:
        raise ValueError(f"unknown service {service!r}; add it to specgrove.config.environment.SERVICES")
    settings = settings_of(cls)
    flags = parse_flags(settings, argv)
    if flags.wants_help:
        sys.stdout.write(help_text(cls, service, settings))
        raise SystemExit(0)
    environment = parse_environment(settings, service, environ)
    problems = [*environment.problems, *flags.problems]
    resolved: list[Resolved] = []
    for known in settings:
        try:
            resolved.append(_resolve(known, service, flags.texts, environment.texts))
        except ValueError as problem:
            problems.append(str(problem))
    config = None if problems else _construct(cls, resolved, problems)
    if config is None:
        raise ConfigError(problems)
    if flags.wants_print:
        sys.stdout.write(config_text(resolved))
        raise SystemExit(0)
    return config


def _resolve(
    known: Setting, service: str, flag_texts: Mapping[str, str], environment_texts: Mapping[str, str]
) -> Resolved:
    """The value of one setting and where it came from; a ValueError that names the source if it is wrong."""
    if known.name in flag_texts:
        text, source, name = flag_texts[known.name], "flag", known.flag
    elif known.name in environment_texts:
        text, source, name = environment_texts[known.name], "environment", known.environment_name(service)
    elif known.default is MISSING:
        raise ValueError(f"{known.flag} is required (or {known.environment_name(service)}): {known.help}".rstrip(": "))
    else:
        return Resolved(known, known.default, "default")
    try:
        return Resolved(known, known.parse(text), f"{source} {name}")
    except ValueError as problem:
        raise ValueError(f"{name} {problem}") from None


def _construct(cls: type[ConfigT], resolved: Sequence[Resolved], problems: list[str]) -> ConfigT | None:
    """The config object; None with the reasons added to `problems` where `cls` refuses the combination."""
    values: dict[str, Any] = {found.setting.name: found.value for found in resolved}
    try:
        return cls(**values)
    except ConfigError as error:
        problems.extend(error.problems)
    except (SpecgroveError, ValueError) as error:
        problems.append(str(error))
    return None
