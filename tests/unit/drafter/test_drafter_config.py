"""Settings: strict, all problems at once."""

from __future__ import annotations

import pytest

from specgrove.config import load_config
from specgrove.errors import ConfigError
from specgrove_drafter.build import member_names
from specgrove_drafter.config import DrafterConfig


def load(*argv: str, **environ: str) -> DrafterConfig:
    return load_config(DrafterConfig, service="drafter", argv=argv, environ=environ)


def test_flags_and_environment() -> None:
    config = load(
        "--ssm", "a,b", "--verifiers", "v1:1,v2:2", "--no-prompt-lookup", SPECGROVE_DRAFTER_EXPANSION="1,1,3,1"
    )
    assert config.ssm == ("a", "b")
    assert config.verifiers == ("v1:1", "v2:2")
    assert not config.prompt_lookup
    assert config.expansion == "1,1,3,1"


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load("--no-prompt-lookup", "--expansion", "1,x", "--verifiers", "nowhere")
    text = "\n".join(caught.value.problems)
    for word in ("no member", "--tokenizer", "--expansion", "'nowhere'"):
        assert word in text


def test_somebody_to_draft_for_is_required() -> None:
    with pytest.raises(ConfigError, match="nobody to draft for"):
        load("--ssm", "a")


def test_member_names_are_distinct_and_in_the_order_of_their_bits() -> None:
    config = load("--ssm", "/m/ssm,/n/ssm,/m/other", "--random-member", "--redis-url", "redis://x")
    assert member_names(config) == ("ssm", "ssm#2", "other", "prompt_lookup", "random")
