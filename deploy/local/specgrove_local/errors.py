"""What can go wrong while the system is started on one machine.

SpecgroveError
└── LocalError          the launcher cannot go on; the message says what to do
    ├── ChildDied       a process ended by itself; carries the last lines of its log
    └── NotReady        a process did not become healthy in time
"""

from __future__ import annotations

from specgrove.errors import SpecgroveError


class LocalError(SpecgroveError):
    """The launcher cannot go on."""


class ChildDied(LocalError):
    """A process of the cluster ended that should have kept running."""


class NotReady(LocalError):
    """A process runs but did not become healthy within its time."""
