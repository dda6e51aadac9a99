"""Our errors as gRPC statuses and back. The class travels in the trailing metadata, so the way back is exact.

    specgrove-error   class name            specgrove-field   field of an InvalidInput, percent-encoded
    retry-after-s     seconds, for Overloaded

Clients in other languages need only the code and the details.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote

import grpc
import grpc.aio

from specgrove import errors
from specgrove.errors import SpecgroveError, status_of

ERROR_KEY = "specgrove-error"
FIELD_KEY = "specgrove-field"
RETRY_AFTER_KEY = "retry-after-s"
MAX_DETAILS_CHARS = 2000  # details and metadata share one header block; peers refuse large ones
_MAX_FIELD_CHARS = 200
INTERNAL_DETAILS = "internal error; the server's log has the details"


@dataclass(frozen=True, slots=True)
class RpcStatus:
    """How an error leaves a server."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str], ...]


def rpc_status_of(error: BaseException) -> RpcStatus:
    """The status of `error`; a foreign exception is INTERNAL and its text stays inside."""
    if not isinstance(error, SpecgroveError):
        return RpcStatus(grpc.StatusCode.INTERNAL, INTERNAL_DETAILS, ())
    metadata = [(ERROR_KEY, type(error).__name__)]
    field = getattr(error, "field", None)
    if field:
        metadata.append((FIELD_KEY, quote(field[:_MAX_FIELD_CHARS], safe="._[]-/ ")))
    if isinstance(error, errors.Overloaded):
        metadata.append((RETRY_AFTER_KEY, f"{error.retry_after_s:g}"))
    details = error.message[:MAX_DETAILS_CHARS]
    return RpcStatus(grpc.StatusCode[status_of(error).grpc], details, tuple(metadata))


def error_from_rpc(error: grpc.aio.AioRpcError | grpc.RpcError) -> SpecgroveError:
    """Our error for a failed call: the one that the server raised, or the nearest for a status it did not choose.

    Calls of event loops and of threads alike. A peer that is gone, too slow for the deadline or shutting down is
    PeerUnavailable.
    """
    metadata = _texts(error.trailing_metadata())
    message = error.details() or error.code().name
    build = _BY_NAME.get(metadata.get(ERROR_KEY, "")) or _fallback(error.code(), message)
    return build(message, metadata)


def _texts(metadata: Iterable[tuple[str, str | bytes]] | None) -> dict[str, str]:
    return {key: value for key, value in (metadata or ()) if isinstance(value, str)}


_Builder = Callable[[str, dict[str, str]], SpecgroveError]


def _plain(cls: type[SpecgroveError]) -> _Builder:
    return lambda message, metadata: cls(message)


def _with_field(cls: type[errors.InvalidInput] | type[errors.ModelNotFound]) -> _Builder:
    def build(message: str, metadata: dict[str, str]) -> SpecgroveError:
        return cls(message, field=unquote(metadata[FIELD_KEY]) if FIELD_KEY in metadata else None)

    return build


def _overloaded(message: str, metadata: dict[str, str]) -> SpecgroveError:
    try:
        return errors.Overloaded(message, retry_after_s=max(0.0, float(metadata[RETRY_AFTER_KEY])))
    except (KeyError, ValueError):
        return errors.Overloaded(message)


def _config_error(message: str, metadata: dict[str, str]) -> SpecgroveError:
    return errors.ConfigError([message])


_BY_NAME: dict[str, _Builder] = {
    "InvalidInput": _with_field(errors.InvalidInput),
    "ContextTooLong": _with_field(errors.ContextTooLong),
    "RequestTooLarge": _with_field(errors.RequestTooLarge),
    "ModelNotFound": _with_field(errors.ModelNotFound),
    "SessionLost": _plain(errors.SessionLost),
    "StaleEpoch": _plain(errors.StaleEpoch),
    "SessionTaken": _plain(errors.SessionTaken),
    "Overloaded": _overloaded,
    "PeerUnavailable": _plain(errors.PeerUnavailable),
    "VocabularyMismatch": _plain(errors.VocabularyMismatch),
    "ProtocolViolation": _plain(errors.ProtocolViolation),
    "ConfigError": _config_error,
    "ModelLoadError": _plain(errors.ModelLoadError),
    "SpecgroveError": _plain(SpecgroveError),
}

_BY_CODE: dict[grpc.StatusCode, _Builder] = {
    grpc.StatusCode.INVALID_ARGUMENT: _with_field(errors.InvalidInput),
    grpc.StatusCode.OUT_OF_RANGE: _with_field(errors.InvalidInput),
    grpc.StatusCode.NOT_FOUND: _plain(errors.SessionLost),
    grpc.StatusCode.ABORTED: _plain(errors.StaleEpoch),
    grpc.StatusCode.RESOURCE_EXHAUSTED: _overloaded,
    grpc.StatusCode.FAILED_PRECONDITION: _plain(errors.ProtocolViolation),
    grpc.StatusCode.UNIMPLEMENTED: _plain(errors.ProtocolViolation),
    grpc.StatusCode.UNAVAILABLE: _plain(errors.PeerUnavailable),
    grpc.StatusCode.DEADLINE_EXCEEDED: _plain(errors.PeerUnavailable),
    grpc.StatusCode.CANCELLED: _plain(errors.PeerUnavailable),
}


def _fallback(code: grpc.StatusCode, message: str) -> _Builder:
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in message:
        return _with_field(errors.RequestTooLarge)  # grpc's own words for a message over the cap
    return _BY_CODE.get(code, _plain(SpecgroveError))
