"""Settings: sources and their order, strictness, print-outs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from specgrove.config import load_config, run_with_config, setting
from specgrove.errors import ConfigError, PeerUnavailable


@dataclass(frozen=True, slots=True)
class PodConfig:
    """A pod for tests. Second sentence.

    Second paragraph.
    """

    port: int = setting(default=50051, minimum=0, maximum=65535, help="gRPC port")
    model: str = setting(help="model folder")
    wait_ms: float = setting(default=2.5, minimum=0.0)
    weights: Literal["auto", "float32"] = setting(default="auto")
    verifiers: tuple[str, ...] = setting(default=())
    redis_url: str | None = setting(default=None)
    max_nodes: int | None = setting(default=None, minimum=1)
    prompt_lookup: bool = setting(default=True)
    api_key: str = setting(default="", secret=True)

    def __post_init__(self) -> None:
        if self.max_nodes == 13:
            raise ConfigError(["max_nodes 13 brings bad luck", "take 12"])
        if self.wait_ms == 13:
            raise ValueError("wait_ms 13 brings bad luck")


def load(*argv: str, **environ: str) -> PodConfig:
    return load_config(PodConfig, service="verifier", argv=["--model", "m", *argv], environ=environ)


def problems_of(*argv: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(*argv, **environ)
    return caught.value.problems


def test_defaults_hold_where_nothing_is_said() -> None:
    assert load() == PodConfig(model="m")


def test_flag_beats_environment_beats_default() -> None:
    assert load(SPECGROVE_VERIFIER_PORT="1").port == 1
    assert load("--port", "2", SPECGROVE_VERIFIER_PORT="1").port == 2
    assert load("--port=3", SPECGROVE_VERIFIER_PORT="1").port == 3


def test_the_last_of_two_flags_wins() -> None:
    assert load("--port", "2", "--port", "3").port == 3
    assert load("--no-prompt-lookup", "--prompt-lookup").prompt_lookup is True


def test_each_type_is_read_from_text() -> None:
    config = load(
        "--wait-ms=0.5",
        "--weights",
        "float32",
        "--verifiers",
        "a:1, b:2",
        "--redis-url",
        "redis://r",
        "--max-nodes",
        "8",
    )
    assert config.wait_ms == 0.5
    assert config.weights == "float32"
    assert config.verifiers == ("a:1", "b:2")
    assert config.redis_url == "redis://r"
    assert config.max_nodes == 8


@pytest.mark.parametrize("text", ["", "none", " None "])
def test_nothing_is_spelt_empty_or_none(text: str) -> None:
    config = load(SPECGROVE_VERIFIER_REDIS_URL=text, SPECGROVE_VERIFIER_MAX_NODES=text)
    assert config.redis_url is None
    assert config.max_nodes is None


def test_a_list_may_have_blanks_around_its_entries_or_be_empty() -> None:
    assert load("--verifiers", " a:1 , b:2").verifiers == ("a:1", "b:2")
    assert load("--verifiers", "").verifiers == ()


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("1", True), ("ON", True), ("false", False), ("0", False), ("no", False)]
)
def test_booleans_from_the_environment(text: str, value: bool) -> None:
    assert load(SPECGROVE_VERIFIER_PROMPT_LOOKUP=text).prompt_lookup is value


def test_booleans_from_flags() -> None:
    assert load("--no-prompt-lookup").prompt_lookup is False
    assert load("--prompt-lookup", SPECGROVE_VERIFIER_PROMPT_LOOKUP="false").prompt_lookup is True
    assert load("--prompt-lookup=false").prompt_lookup is False


def test_a_value_may_start_with_a_single_dash() -> None:
    assert problems_of("--port", "-1") == ["--port must be at least 0, got -1"]


def test_all_problems_come_in_one_error() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(
            PodConfig,
            service="verifier",
            argv=["--prot", "3", "--port", "x", "--weights", "int4", "--verifiers", "a,,b", "stray", "--redis-url"],
            environ={"SPECGROVE_VERIFIER_WAIT_MS": "nan", "SPECGROVE_VERIFIER_PROMPT_LOOKUP": "maybe"},
        )
    text = caught.value.message
    for part in (
        "unknown flag --prot (did you mean --port?)",
        "--port must be a whole number, got 'x'",
        "--weights must be one of auto, float32; got 'int4'",
        "--verifiers has an empty entry between commas: 'a,,b'",
        "unexpected argument 'stray'",
        "--redis-url needs a value",
        "SPECGROVE_VERIFIER_WAIT_MS must be a finite number, got 'nan'",
        "SPECGROVE_VERIFIER_PROMPT_LOOKUP must be true or false, got 'maybe'",
        "--model is required (or SPECGROVE_VERIFIER_MODEL): model folder",
    ):
        assert part in text
    assert len(caught.value.problems) == 9


@pytest.mark.parametrize("text", ["70000", "-1"])
def test_bounds_are_checked_in_every_source(text: str) -> None:
    (from_flag,) = problems_of(f"--port={text}")
    (from_environment,) = problems_of(SPECGROVE_VERIFIER_PORT=text)
    assert from_flag.startswith("--port must be at ")
    assert from_environment.startswith("SPECGROVE_VERIFIER_PORT must be at ")


def test_bounds_hold_for_optional_numbers() -> None:
    assert problems_of("--max-nodes", "0") == ["--max-nodes must be at least 1, got 0"]


def test_what_the_class_itself_refuses_is_a_problem_too() -> None:
    assert problems_of("--max-nodes", "13") == ["max_nodes 13 brings bad luck", "take 12"]
    assert problems_of("--wait-ms", "13") == ["wait_ms 13 brings bad luck"]


def test_a_flag_with_underscores_is_unknown_but_understood() -> None:
    assert problems_of("--wait_ms", "1") == ["unknown flag --wait_ms (did you mean --wait-ms?)"]


def test_an_unknown_setting_of_this_service_is_a_problem() -> None:
    (problem,) = problems_of(SPECGROVE_VERIFIER_PROT="1")
    assert (
        problem == "SPECGROVE_VERIFIER_PROT: the verifier has no such setting (did you mean SPECGROVE_VERIFIER_PORT?)"
    )


def test_a_misspelt_service_is_a_problem() -> None:
    (problem,) = problems_of(SPECGROVE_VERIFER_PORT="1")
    assert problem.startswith("SPECGROVE_VERIFER_PORT: no such service")
    assert problem.endswith("(did you mean VERIFIER?)")


def test_sister_services_and_foreign_variables_are_left_alone() -> None:
    assert load(SPECGROVE_GATEWAY_ANYTHING="1", SPECGROVE_LOCAL_X="", PATH="/bin", SPECGROVEX="1") == PodConfig(
        model="m"
    )


def test_service_links_of_kubernetes_are_left_alone() -> None:
    config = load(
        SPECGROVE_VERIFIER_PORT="tcp://10.0.0.7:50051",
        SPECGROVE_VERIFIER_SERVICE_HOST="10.0.0.7",
        SPECGROVE_VERIFIER_SERVICE_PORT="50051",
        SPECGROVE_VERIFIER_SERVICE_PORT_GRPC="50051",
        SPECGROVE_VERIFIER_PORT_50051_TCP="tcp://10.0.0.7:50051",
        SPECGROVE_VERIFIER_PORT_50051_TCP_ADDR="10.0.0.7",
        SPECGROVE_REDIS_SERVICE_HOST="10.0.0.8",
        SPECGROVE_REDIS_PORT="tcp://10.0.0.8:6379",
    )
    assert config == PodConfig(model="m")


def test_print_config_shows_values_and_sources_and_hides_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load(
            "--print-config",
            "--api-key=hunter2",
            "--redis-url=rediss://user:hunter3@host:6379/0",
            SPECGROVE_VERIFIER_PORT="7",
        )
    assert caught.value.code == 0
    lines = {line.split(" = ")[0].strip(): line.split(" = ")[1] for line in capsys.readouterr().out.splitlines()}
    assert lines["port"].split() == ["7", "#", "environment", "SPECGROVE_VERIFIER_PORT"]
    assert lines["model"].split() == ["m", "#", "flag", "--model"]
    assert lines["weights"].split() == ["auto", "#", "default"]
    assert lines["api_key"].split()[0] == "***"
    assert lines["redis_url"].split()[0] == "rediss://user:***@host:6379/0"
    assert list(lines) == [
        "port", "model", "wait_ms", "weights", "verifiers", "redis_url", "max_nodes", "prompt_lookup", "api_key",
    ]  # fmt: skip


def test_print_config_does_not_hide_problems() -> None:
    assert problems_of("--print-config", "--port", "x") == ["--port must be a whole number, got 'x'"]


def test_help_needs_nothing_and_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load_config(PodConfig, service="verifier", argv=["--port", "x", "-h"], environ={"SPECGROVE_VERIFER_X": ""})
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("specgrove verifier: A pod for tests. Second sentence.\n")
    for part in (
        "--port INT\n      gRPC port (default: 50051; at least 0; at most 65535)\n",
        "environment: SPECGROVE_VERIFIER_PORT",
        "--weights auto|float32",
        "--prompt-lookup / --no-prompt-lookup",
        "model folder (required)",
        "--print-config",
    ):
        assert part in text


def test_a_type_that_settings_do_not_have_is_the_authors_mistake() -> None:
    @dataclass(frozen=True, slots=True)
    class Wrong:
        numbers: bytes = setting(default=None)

    with pytest.raises(TypeError, match=r"Wrong\.numbers"):
        load_config(Wrong, service="verifier", argv=[], environ={})


def test_an_unknown_service_is_the_authors_mistake() -> None:
    with pytest.raises(ValueError, match="unknown service 'verifer'"):
        load_config(PodConfig, service="verifer", argv=[], environ={})


def test_run_with_config_returns_what_the_service_returns() -> None:
    seen = []

    async def serve(config: PodConfig) -> int | None:
        seen.append(config)
        return 3 if config.port else None

    assert run_with_config(PodConfig, "verifier", serve, argv=["--model", "m"], environ={}) == 3
    assert run_with_config(PodConfig, "verifier", serve, argv=["--model", "m", "--port=0"], environ={}) == 0
    assert [config.port for config in seen] == [50051, 0]


def test_run_with_config_ends_with_2_on_wrong_settings(capsys: pytest.CaptureFixture[str]) -> None:
    async def serve(config: PodConfig) -> None:
        raise ConfigError(["cannot listen on 127.0.0.1:1: Address already in use"])

    assert run_with_config(PodConfig, "verifier", serve, argv=[], environ={}) == 2
    assert "--model is required" in capsys.readouterr().err
    assert run_with_config(PodConfig, "verifier", serve, argv=["--model", "m"], environ={}) == 2
    assert "127.0.0.1:1: Address already in use" in capsys.readouterr().err


def test_run_with_config_ends_with_1_on_our_other_errors(capsys: pytest.CaptureFixture[str]) -> None:
    async def serve(config: PodConfig) -> None:
        raise PeerUnavailable("nobody there")

    assert run_with_config(PodConfig, "verifier", serve, argv=["--model", "m"], environ={}) == 1
    assert capsys.readouterr().err == "specgrove verifier: nobody there\n"


def test_run_with_config_lets_foreign_exceptions_pass() -> None:
    async def serve(config: PodConfig) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_with_config(PodConfig, "verifier", serve, argv=["--model", "m"], environ={})
