"""What a setting is: a dataclass field with a type, a default, bounds and one line of help."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import MISSING, dataclass
from typing import Any

from specgrove.config.values import ValueKind, kind_of

_METADATA_KEY = "specgrove_setting"


@dataclass(frozen=True, slots=True)
class _Facts:
    help: str
    minimum: float | None
    maximum: float | None
    is_secret: bool


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a config class, ready to be read, checked and printed."""

    name: str
    kind: ValueKind
    default: object  # MISSING: the setting must be given
    help: str
    minimum: float | None
    maximum: float | None
    is_secret: bool

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def negative_flag(self) -> str:
        """The flag that switches a boolean off."""
        return "--no-" + self.name.replace("_", "-")

    @property
    def is_required(self) -> bool:
        return self.default is MISSING

    def environment_name(self, service: str) -> str:
        return f"SPECGROVE_{service.upper()}_{self.name.upper()}"

    def parse(self, text: str) -> object:
        """The value that `text` spells. Raises ValueError with what would be right."""
        value = self.kind.parse(text)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if self.minimum is not None and value < self.minimum:
                raise ValueError(f"must be at least {self.minimum:g}, got {text}")
            if self.maximum is not None and value > self.maximum:
                raise ValueError(f"must be at most {self.maximum:g}, got {text}")
        return value


def setting(
    default: Any = MISSING,
    *,
    help: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    secret: bool = False,
) -> Any:
    """A dataclass field that `load_config` can fill; without `default` it must be given.

    The bounds are inclusive and hold for numbers; `secret` hides the value in print-outs. The field is keyword-only, so
    required ones may follow optional ones.
    """
    facts = _Facts(help=help, minimum=minimum, maximum=maximum, is_secret=secret)
    return dataclasses.field(default=default, kw_only=True, metadata={_METADATA_KEY: facts})


def settings_of(config_class: type) -> tuple[Setting, ...]:
    """The settings of `config_class` in the order of its fields. A field of an unsupported type is a TypeError."""
    hints = typing.get_type_hints(config_class)
    found = []
    for field in dataclasses.fields(config_class):
        facts = field.metadata.get(_METADATA_KEY, _Facts(help="", minimum=None, maximum=None, is_secret=False))
        found.append(
            Setting(
                name=field.name,
                kind=kind_of(hints[field.name], f"{config_class.__name__}.{field.name}"),
                default=field.default,
                help=facts.help,
                minimum=facts.minimum,
                maximum=facts.maximum,
                is_secret=facts.is_secret,
            )
        )
    return tuple(found)
