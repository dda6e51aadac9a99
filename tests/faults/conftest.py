"""Systems to be broken: each module starts its own, since what is killed stays killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from specgrove.text import Tokenizer
from support.live_cluster import target_folder
from support.prompts import chat_prompts


@pytest.fixture(scope="session")
def target() -> Path:
    return target_folder()


@pytest.fixture(scope="session")
def prompts(target: Path) -> list[tuple[int, ...]]:
    return chat_prompts(Tokenizer.load(target), 4)
