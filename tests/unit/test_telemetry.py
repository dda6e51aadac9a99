"""JSON log lines with their context, and metrics that can be scraped."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
import urllib.request
import warnings
from collections.abc import Iterator

import pytest

from specgrove.errors import ConfigError
from specgrove.telemetry import (
    CollectorRegistry,
    Counter,
    configure_logging,
    current_log_context,
    log_context,
    new_registry,
    render_metrics,
    start_metrics_server,
)
from specgrove.telemetry.logs import JsonFormatter

log = logging.getLogger("specgrove.test")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where the log lines of one test go; the process's own logging comes back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging("verifier", "debug", stream=stream)
    yield stream
    logging.captureWarnings(False)
    root.handlers, root.level = handlers, level


def lines_of(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object(stream: io.StringIO) -> None:
    log.info("loaded %s\nin %d s", "a model", 3, extra={"num_layers": 30})
    (line,) = lines_of(stream)
    assert line["level"] == "info"
    assert line["service"] == "verifier"
    assert line["logger"] == "specgrove.test"
    assert line["message"] == "loaded a model\nin 3 s"
    assert line["num_layers"] == 30
    assert str(line["time"]).endswith("+00:00")


def test_lines_carry_the_context_they_are_written_in(stream: io.StringIO) -> None:
    with log_context(request_id="r1", session_id=None):
        log.info("outer")
        with log_context(session_id="s1", request_id="r2"):
            log.info("inner")
        log.info("outer again")
    log.info("outside")
    outer, inner, again, outside = lines_of(stream)
    assert (outer["request_id"], "session_id" in outer) == ("r1", False)
    assert (inner["request_id"], inner["session_id"]) == ("r2", "s1")
    assert again["request_id"] == "r1"
    assert "request_id" not in outside


async def test_tasks_keep_their_contexts_apart(stream: io.StringIO) -> None:
    async def work(request_id: str) -> None:
        with log_context(request_id=request_id):
            await asyncio.sleep(0.01)
            log.info(request_id)

    await asyncio.gather(*(work(f"r{number}") for number in range(5)))
    assert all(line["request_id"] == line["message"] for line in lines_of(stream))


async def test_a_task_started_inside_inherits_the_context(stream: io.StringIO) -> None:
    async def child() -> None:
        log.info("child")

    with log_context(request_id="r1"):
        task = asyncio.create_task(child())
    await task
    assert lines_of(stream)[0]["request_id"] == "r1"


def test_a_thread_can_be_given_the_context(stream: io.StringIO) -> None:
    def work(fields: dict[str, str]) -> None:
        with log_context(**fields):
            log.info("thread")

    with log_context(request_id="r1"):
        thread = threading.Thread(target=work, args=(dict(current_log_context()),))
        thread.start()
        thread.join()
    assert lines_of(stream)[0]["request_id"] == "r1"


def test_a_context_never_hides_what_the_line_itself_says(stream: io.StringIO) -> None:
    with log_context(message="forged", level="forged"):
        log.info("real")
    assert lines_of(stream)[0]["message"] == "real"
    assert lines_of(stream)[0]["level"] == "info"


def test_a_traceback_stays_inside_its_line(stream: io.StringIO) -> None:
    try:
        raise ZeroDivisionError("by nothing")
    except ZeroDivisionError:
        log.exception("failed")
    (line,) = lines_of(stream)
    assert "ZeroDivisionError: by nothing" in str(line["exception"])


def test_nothing_that_is_logged_can_break_the_line(stream: io.StringIO) -> None:
    loop: list[object] = []
    loop.append(loop)
    log.info("nan", extra={"value": float("nan")})
    log.info("cycle", extra={"value": loop})
    log.info("key", extra={"value": {(1, 2): 3}})
    log.info("object", extra={"value": object()})
    log.info("surrogate \ud800")
    assert [str(line["message"]).split()[0] for line in lines_of(stream)] == [
        "nan",
        "cycle",
        "key",
        "object",
        "surrogate",
    ]


def test_a_wrong_format_string_does_not_lose_the_line() -> None:
    record = logging.LogRecord("specgrove.test", logging.INFO, "test.py", 1, "wrong %d", ("text",), None)
    assert json.loads(JsonFormatter("verifier").format(record))["message"] == "wrong %d ('text',)"


def test_the_level_is_obeyed_and_other_libraries_are_quiet(stream: io.StringIO) -> None:
    configure_logging("verifier", "INFO", stream=stream)
    log.debug("no")
    logging.getLogger("httpx").info("no")
    logging.getLogger("httpx").warning("yes")
    assert [line["message"] for line in lines_of(stream)] == ["yes"]


def test_warnings_become_lines(stream: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old way", DeprecationWarning, stacklevel=1)
    assert "old way" in str(lines_of(stream)[0]["message"])


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ConfigError, match="debug, info, warning, error; got 'loud'"):
        configure_logging("verifier", "loud")


def scrape(port: int, accept: str = "") -> tuple[str, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


def test_metrics_are_served_on_a_free_port() -> None:
    registry = CollectorRegistry()
    counter = Counter("specgrove:spec_decode_num_drafts", "Trees verified.", registry=registry)
    server = start_metrics_server(registry, "127.0.0.1", 0)
    try:
        counter.inc(3)
        page, content_type = scrape(server.port)
    finally:
        server.close()
    assert "specgrove:spec_decode_num_drafts_total 3.0" in page
    assert content_type.startswith("text/plain")
    with pytest.raises(OSError):
        scrape(server.port)
    server.close()


def test_a_metrics_port_in_use_is_named() -> None:
    server = start_metrics_server(CollectorRegistry(), "127.0.0.1", 0)
    try:
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{server.port}: Address already in use"):
            start_metrics_server(CollectorRegistry(), "127.0.0.1", server.port)
    finally:
        server.close()


def test_rendering_follows_the_accept_header() -> None:
    registry = CollectorRegistry()
    Counter("specgrove:x", "X.", registry=registry)
    assert render_metrics(registry).content_type.startswith("text/plain")
    assert render_metrics(registry, "application/openmetrics-text").body.endswith(b"# EOF\n")


def test_a_new_registry_reports_the_process_and_shares_nothing() -> None:
    first, second = new_registry(), new_registry()
    Counter("specgrove:x", "X.", registry=first)
    Counter("specgrove:x", "X.", registry=second)
    assert b"process_resident_memory_bytes" in render_metrics(first).body
