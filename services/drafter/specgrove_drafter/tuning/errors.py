"""Errors of the tuning command: what the person at the keyboard can act on.

SpecgroveError
└── TuningError
    ├── SettingsError          arguments that cannot work; every problem is in the one message
    ├── UnsupportedTargetError the target folder is not something this command can shrink
    └── ResumeError            the work folder belongs to another run, or a stage lacks its input
"""

from __future__ import annotations

from collections.abc import Sequence

from specgrove.errors import SpecgroveError


class TuningError(SpecgroveError):
    """Base of everything this command raises on purpose."""


class SettingsError(TuningError):
    """Arguments that cannot work; `problems` holds all of them."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("cannot start: " + "; ".join(self.problems))


class UnsupportedTargetError(TuningError):
    """The target folder is missing something, or its architecture is not one that can be shrunk."""


class ResumeError(TuningError):
    """The work folder holds another run's files, or a stage's input is not there yet."""
