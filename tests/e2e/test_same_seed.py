"""Same seed, same tokens: whichever drafter, with or without one, alone or among seven others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specgrove.text import Tokenizer
from specgrove_local.cluster import LocalCluster
from support.gateway_client import Answer, Ask, GatewayClient
from support.live_cluster import AHEAD_FLAGS, drafting, ssm_flags
from support.prompts import chat_prompts

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

_TEMPERATURES = (0.8, 1.0)
_MAX_TOKENS = 32
_BATCH = 8
_ATTEMPTS = 5
_NUM_ALONE = 1  # of each temperature: alone a token costs what eight cost together

DrafterFlags = Callable[[Path], tuple[str, ...]]
_DRAFTERS: dict[str, DrafterFlags] = {
    "drafter": lambda target: (*ssm_flags(), "--ahead", "off"),
    "drafter ahead": lambda target: (*ssm_flags(), *AHEAD_FLAGS),
    "random trees": lambda target: ("--no-prompt-lookup", "--random-member"),
    "draft = target": lambda target: ("--no-prompt-lookup", "--ssm", str(target), "--kv-tokens", "8192"),
}


def _asks(tokenizer: Tokenizer, temperature: float, *, speculation: bool) -> list[Ask]:
    prompts = chat_prompts(tokenizer, _BATCH)
    return [
        Ask(prompt, _MAX_TOKENS, temperature, seed=1000 + number, speculation=speculation, ignore_eos=True)
        for number, prompt in enumerate(prompts)
    ]


@pytest.fixture(scope="module")
def plain(client: GatewayClient, tokenizer: Tokenizer) -> dict[float, list[list[int]]]:
    """The tokens of plain decoding, eight sessions in the batch, by temperature."""
    return {
        temperature: [answer.token_ids for answer in client.ask_all(_asks(tokenizer, temperature, speculation=False))]
        for temperature in _TEMPERATURES
    }


def test_batch_of_one_and_of_eight_draw_the_same_tokens_without_a_drafter(
    client: GatewayClient, tokenizer: Tokenizer, plain: dict[float, list[list[int]]]
) -> None:
    for temperature in _TEMPERATURES:
        asks = _asks(tokenizer, temperature, speculation=False)[:_NUM_ALONE]
        assert [client.ask(ask).token_ids for ask in asks] == plain[temperature][:_NUM_ALONE]


@pytest.mark.parametrize("kind", _DRAFTERS)
def test_no_drafter_changes_what_a_seed_draws(
    kind: str,
    cluster: LocalCluster,
    client: GatewayClient,
    tokenizer: Tokenizer,
    target: Path,
    plain: dict[float, list[list[int]]],
) -> None:
    with drafting(cluster, *_DRAFTERS[kind](target)):
        for temperature in _TEMPERATURES:
            asks, expected = _asks(tokenizer, temperature, speculation=True), plain[temperature]
            together = _drafted_answers(client, asks, expected)
            _drafted_answers(client, asks[:_NUM_ALONE], expected[:_NUM_ALONE])
            num_trees = sum(answer.stats.num_drafts for answer in together)
            num_accepted = sum(answer.stats.num_accepted_tokens for answer in together)
            print(f"{kind}, temperature {temperature}: {num_accepted} tokens accepted from {num_trees} trees")
            if kind == "draft = target":
                # Same weights, same noise: what the drafter likes best is what the target draws.
                num_first = sum(sum(answer.stats.accepted_per_pos[:1]) for answer in together)
                assert num_first >= 0.9 * num_trees, f"only {num_first} of {num_trees} trees were accepted at depth 1"


def _drafted_answers(client: GatewayClient, asks: list[Ask], expected: list[list[int]]) -> list[Answer]:
    """All `asks` at once, with trees in their steps. Asked again if nobody drafted; the tokens must be right always.

    A drafter that missed its deadline on a busy machine is not waited for, for some seconds: longer than an answer.
    """
    for _ in range(_ATTEMPTS):
        answers = client.ask_all(asks, concurrency=_BATCH)
        assert [answer.token_ids for answer in answers] == expected
        if any(answer.stats.num_draft_tokens for answer in answers):
            return answers
    raise AssertionError(f"no tree was verified in {_ATTEMPTS} attempts")


def test_different_seeds_draw_different_tokens(client: GatewayClient, tokenizer: Tokenizer) -> None:
    prompt = chat_prompts(tokenizer, 1)[0]
    answers = client.ask_all([Ask(prompt, _MAX_TOKENS, 1.0, seed=seed, ignore_eos=True) for seed in range(4)])
    assert len({tuple(answer.token_ids) for answer in answers}) == 4
