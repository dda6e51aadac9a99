"""The status table answers for every error, ours and foreign."""

from __future__ import annotations

import inspect

import grpc
import pytest

from specgrove import errors
from specgrove.errors import SpecgroveError, status_of

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, SpecgroveError)]


@pytest.mark.parametrize(
    ("error", "grpc_name", "http"),
    [
        (errors.InvalidInput("x"), "INVALID_ARGUMENT", 400),
        (errors.ContextTooLong("x", field="prompt"), "INVALID_ARGUMENT", 400),
        (errors.RequestTooLarge("x"), "INVALID_ARGUMENT", 413),
        (errors.ModelNotFound("x"), "NOT_FOUND", 404),
        (errors.SessionLost("x"), "NOT_FOUND", 404),
        (errors.StaleEpoch("x"), "ABORTED", 409),
        (errors.Overloaded("x"), "RESOURCE_EXHAUSTED", 429),
        (errors.PeerUnavailable("x"), "UNAVAILABLE", 503),
        (errors.VocabularyMismatch("x"), "FAILED_PRECONDITION", 409),
        (errors.ProtocolViolation("x"), "FAILED_PRECONDITION", 400),
        (errors.SpecgroveError("x"), "INTERNAL", 500),
        (ZeroDivisionError(), "INTERNAL", 500),
    ],
)
def test_an_error_has_the_status_of_the_design(error: Exception, grpc_name: str, http: int) -> None:
    status = status_of(error)
    assert (status.grpc, status.http) == (grpc_name, http)


def test_a_subclass_without_a_row_has_the_status_of_its_parent() -> None:
    class OddPrompt(errors.ContextTooLong):
        pass

    assert status_of(OddPrompt("x")) == status_of(errors.InvalidInput("x"))


@pytest.mark.parametrize("cls", CLASSES)
def test_every_status_is_one_that_grpc_knows(cls: type[SpecgroveError]) -> None:
    error = cls(["x"]) if cls is errors.ConfigError else cls("x")
    assert hasattr(grpc.StatusCode, status_of(error).grpc)


def test_the_drawing_at_the_top_names_every_class() -> None:
    assert all(cls.__name__ in (errors.__doc__ or "") for cls in CLASSES)


def test_a_config_error_lists_every_problem() -> None:
    assert str(errors.ConfigError(["one is wrong", "two is missing"])).splitlines()[1:] == [
        "  - one is wrong",
        "  - two is missing",
    ]
