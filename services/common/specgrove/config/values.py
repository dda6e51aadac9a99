"""How text becomes a value: one small class for each type that a setting may have."""

from __future__ import annotations

import math
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Union

_TRUE_WORDS = frozenset({"true", "1", "yes", "on"})
_FALSE_WORDS = frozenset({"false", "0", "no", "off"})
_NONE_WORDS = frozenset({"", "none"})


class ValueKind(Protocol):
    """Reads and names the values of one type."""

    @property
    def label(self) -> str:
        """What a person has to write, for the help text."""
        ...

    def parse(self, text: str) -> object:
        """The value that `text` spells; ValueError says what would be right."""
        ...


@dataclass(frozen=True, slots=True)
class TextKind:
    label: str = "TEXT"

    def parse(self, text: str) -> str:
        return text


@dataclass(frozen=True, slots=True)
class IntKind:
    label: str = "INT"

    def parse(self, text: str) -> int:
        try:
            return int(text.strip())
        except ValueError:
            raise ValueError(f"must be a whole number, got {text!r}") from None


@dataclass(frozen=True, slots=True)
class FloatKind:
    label: str = "NUMBER"

    def parse(self, text: str) -> float:
        try:
            value = float(text.strip())
        except ValueError:
            raise ValueError(f"must be a number, got {text!r}") from None
        if not math.isfinite(value):
            raise ValueError(f"must be a finite number, got {text!r}")
        return value


@dataclass(frozen=True, slots=True)
class BoolKind:
    label: str = ""

    def parse(self, text: str) -> bool:
        word = text.strip().lower()
        if word in _TRUE_WORDS:
            return True
        if word in _FALSE_WORDS:
            return False
        raise ValueError(f"must be true or false, got {text!r}")


@dataclass(frozen=True, slots=True)
class ChoiceKind:
    choices: tuple[Any, ...]

    @property
    def label(self) -> str:
        return "|".join(str(choice) for choice in self.choices)

    def parse(self, text: str) -> object:
        for choice in self.choices:
            if str(choice) == text.strip():
                return typing.cast(object, choice)
        raise ValueError(f"must be one of {', '.join(str(choice) for choice in self.choices)}; got {text!r}")


@dataclass(frozen=True, slots=True)
class ListKind:
    """Comma-separated texts; blanks around an entry are dropped, an empty text is an empty list."""

    label: str = "TEXT,TEXT,..."

    def parse(self, text: str) -> tuple[str, ...]:
        if not text.strip():
            return ()
        entries = tuple(entry.strip() for entry in text.split(","))
        if not all(entries):
            raise ValueError(f"has an empty entry between commas: {text!r}")
        return entries


@dataclass(frozen=True, slots=True)
class OptionalKind:
    """Another kind, or nothing: an empty text and the word `none` mean None."""

    inner: ValueKind

    @property
    def label(self) -> str:
        return self.inner.label

    def parse(self, text: str) -> object:
        return None if text.strip().lower() in _NONE_WORDS else self.inner.parse(text)


_SIMPLE_KINDS: dict[object, ValueKind] = {str: TextKind(), int: IntKind(), float: FloatKind(), bool: BoolKind()}


def kind_of(hint: Any, where: str) -> ValueKind:
    """The kind for the type hint `hint`; TypeError naming `where` for a type that settings do not have."""
    if hint in _SIMPLE_KINDS:
        return _SIMPLE_KINDS[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return ChoiceKind(arguments)
    if origin is tuple and arguments == (str, ...):
        return ListKind()
    if origin in (Union, types.UnionType):
        inner = [argument for argument in arguments if argument is not type(None)]
        if len(inner) == 1 and len(inner) < len(arguments):
            return OptionalKind(kind_of(inner[0], where))
    raise TypeError(f"{where}: a setting cannot have the type {hint}; see specgrove.config.values")


def format_value(value: object) -> str:
    """`value` as it would be written in the environment; None is `none`."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(str(entry) for entry in value)
    return str(value)
