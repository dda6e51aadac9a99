"""Every error that specgrove raises on purpose, and the one table that gives each its status.

    SpecgroveError                     INTERNAL             500
    ├── InvalidInput                   INVALID_ARGUMENT     400   what a client sent is wrong; names the field
    │   ├── ContextTooLong             INVALID_ARGUMENT     400   prompt does not fit the model's context
    │   └── RequestTooLarge            INVALID_ARGUMENT     413   body over the size cap
    ├── ModelNotFound                  NOT_FOUND            404   no such model here
    ├── SessionLost                    NOT_FOUND            404   nobody holds this session any more
    ├── StaleEpoch                     ABORTED              409   the epoch of a call is older than its session's
    │   └── SessionTaken               ABORTED              409   a newer call took the session from a running one
    ├── Overloaded                     RESOURCE_EXHAUSTED   429   try again after `retry_after_s`
    ├── PeerUnavailable                UNAVAILABLE          503   another pod cannot be reached
    ├── VocabularyMismatch             FAILED_PRECONDITION  409   drafter and verifier speak different token ids
    ├── ProtocolViolation              FAILED_PRECONDITION  400   a peer broke the order of the draft stream
    ├── ConfigError                    FAILED_PRECONDITION  500   settings are wrong; lists every problem
    └── ModelLoadError                 FAILED_PRECONDITION  500   a model folder, hub id or GGUF file cannot be used

The client always learns what to do next: messages say what was wrong and what would be right.
"""

from __future__ import annotations

from dataclasses import dataclass


class SpecgroveError(Exception):
    """Base of all errors of this project. `message` is written for the person who can act on it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidInput(SpecgroveError):
    """A request is wrong. `field` is the name of the field as the client spells it (None: the body as a whole)."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ContextTooLong(InvalidInput):
    """The prompt, or prompt plus requested output, does not fit the context of the model."""


class RequestTooLarge(InvalidInput):
    """The body is larger than the gateway reads."""


class ModelNotFound(SpecgroveError):
    """The named model is not served here."""

    def __init__(self, message: str, *, field: str | None = "model") -> None:
        super().__init__(message)
        self.field = field


class SessionLost(SpecgroveError):
    """The session is not known here; start it again."""


class StaleEpoch(SpecgroveError):
    """The epoch of a call is older than one already seen for the session; claim a newer one or give up."""


class SessionTaken(StaleEpoch):
    """A newer call has taken the session from this one while it ran; it must stop speaking for it."""


class Overloaded(SpecgroveError):
    """No room now. `retry_after_s` is when to come back."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PeerUnavailable(SpecgroveError):
    """Another pod could not be reached or went away."""


class VocabularyMismatch(SpecgroveError):
    """Token ids of the two peers do not mean the same tokens."""


class ProtocolViolation(SpecgroveError):
    """A peer sent a message that the protocol does not allow at that point."""


class ConfigError(SpecgroveError):
    """Settings are wrong. `problems` holds one line for each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("settings are wrong:\n" + "\n".join(f"  - {problem}" for problem in problems))
        self.problems = problems


class ModelLoadError(SpecgroveError):
    """A model cannot be loaded; the message says which file is wanted or what is not supported."""


@dataclass(frozen=True, slots=True)
class Status:
    """How one class of error looks on the wire."""

    grpc: str  # name of a grpc.StatusCode
    http: int
    openai_type: str  # `error.type` of an OpenAI error body


_STATUS_TABLE: dict[type[SpecgroveError], Status] = {
    RequestTooLarge: Status("INVALID_ARGUMENT", 413, "invalid_request_error"),
    InvalidInput: Status("INVALID_ARGUMENT", 400, "invalid_request_error"),
    ModelNotFound: Status("NOT_FOUND", 404, "invalid_request_error"),
    SessionLost: Status("NOT_FOUND", 404, "invalid_request_error"),
    StaleEpoch: Status("ABORTED", 409, "conflict_error"),
    Overloaded: Status("RESOURCE_EXHAUSTED", 429, "rate_limit_error"),
    PeerUnavailable: Status("UNAVAILABLE", 503, "service_unavailable_error"),
    VocabularyMismatch: Status("FAILED_PRECONDITION", 409, "conflict_error"),
    ProtocolViolation: Status("FAILED_PRECONDITION", 400, "invalid_request_error"),
    ConfigError: Status("FAILED_PRECONDITION", 500, "server_error"),
    ModelLoadError: Status("FAILED_PRECONDITION", 500, "server_error"),
    SpecgroveError: Status("INTERNAL", 500, "server_error"),
}


def status_of(error: BaseException) -> Status:
    """The status of `error`: that of its nearest class in the table; anything foreign is an internal error."""
    for cls in type(error).__mro__:
        if cls in _STATUS_TABLE:
            return _STATUS_TABLE[cls]
    return _STATUS_TABLE[SpecgroveError]
