"""The features a drafter gets are the target's own, of the base they come with; nobody else pays for them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specgrove.runtime.loading import LoadedModel, load_model
from specgrove.sampling.params import SamplingParams, SpeculationOptions
from specgrove_verifier.drafter_pool import CloseSession, CommitTokens, OpenSession
from specgrove_verifier.mailbox import DraftBudget
from specgrove_verifier.outbox import coalesce
from support.engine_stand import GREEDY, InProcessDrafter, Mirror, Stand, knowing_trees, random_trees, running_stand
from support.tiny_models import VOCAB_SIZE, own_features, own_model, write_tiny_model

PROMPT = [4, 5, 6]
MAX_TOKENS = 12
TOLERANCE = 2e-3


@pytest.fixture(scope="module")
def deep_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("deep"), num_hidden_layers=4, seed=2)


@pytest.fixture(scope="module")
def target(deep_folder: Path) -> LoadedModel:
    return load_model(deep_folder, "float32")


@pytest.fixture(scope="module")
def own(deep_folder: Path) -> Any:
    return own_model(deep_folder)


@pytest.fixture(scope="module")
def truth(target: LoadedModel) -> list[int]:
    with running_stand(target) as stand:
        return PROMPT + stand.generate(PROMPT, MAX_TOKENS).token_ids


def heard(drafter: InProcessDrafter) -> Iterator[tuple[list[int], bytes, int]]:
    """Every base that `drafter` was to draft under: its tokens, its features, and how many tokens were new."""
    mirrors: dict[int, list[int]] = {}
    for update in drafter.updates:
        match update:
            case OpenSession():
                mirrors[update.session_key] = list(update.token_ids)
            case CommitTokens():
                mirrors[update.session_key] += update.token_ids
            case CloseSession():
                continue
        if update.budget.max_nodes > 0:
            yield list(mirrors[update.session_key]), update.features, len(update.token_ids)
        else:
            assert update.features == b"", "features went to a drafter that may not draft"


def assert_features(values: bytes, own: Any, tokens: Sequence[int], layers: Sequence[int]) -> None:
    ours = torch.from_numpy(np.frombuffer(values, "<f2").astype(np.float32))
    torch.testing.assert_close(ours, own_features(own, tokens, layers), atol=TOLERANCE, rtol=1e-3)


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=0.9, seed=5)])
def test_every_base_comes_with_the_states_that_gave_its_last_token(
    target: LoadedModel, own: Any, sampling: SamplingParams
) -> None:
    with running_stand(target) as stand:
        truth = PROMPT + stand.generate(PROMPT, MAX_TOKENS, sampling=sampling).token_ids
    drafter = InProcessDrafter(knowing_trees([truth], right_len=2), feature_layers=(3, 1))
    with running_stand(target, drafter) as stand:
        assert PROMPT + stand.generate(PROMPT, MAX_TOKENS, sampling=sampling).token_ids == truth
    bases = list(heard(drafter))
    assert {num_new for _, _, num_new in bases[1:]} >= {3}, "no path of several tokens was accepted"
    for tokens, values, _ in bases:
        assert_features(values, own, tokens, (3, 1))


def test_each_drafter_gets_its_own_layers_in_its_own_order(target: LoadedModel, own: Any, truth: list[int]) -> None:
    knowing = knowing_trees([truth], right_len=1)
    one = InProcessDrafter(knowing, number=1, feature_layers=(2,))
    other = InProcessDrafter(knowing, number=2, feature_layers=(3, 2, 1))
    plain = InProcessDrafter(knowing, number=3)
    with running_stand(target, one, other, plain, drafters_per_session=3) as stand:
        assert PROMPT + stand.generate(PROMPT, MAX_TOKENS).token_ids == truth
    for drafter in (one, other):
        for tokens, values, _ in heard(drafter):
            assert_features(values, own, tokens, drafter.feature_layers)
    assert all(values == b"" for _, values, _ in heard(plain))


def test_sessions_in_one_step_keep_their_features_apart(target: LoadedModel, own: Any) -> None:
    prompts = [[4 + n, 5, 6 * n + 1] for n in range(5)]
    drafter = InProcessDrafter(random_trees(VOCAB_SIZE), feature_layers=(1,))
    with running_stand(target, drafter) as stand:
        for running in [stand.start(prompt, MAX_TOKENS, session_id=f"{prompt}") for prompt in prompts]:
            running.answer()
    bases = list(heard(drafter))
    assert len(bases) > 5 * 6
    for tokens, values, _ in bases:
        assert_features(values, own, tokens, (1,))


def test_a_preempted_generation_comes_back_with_features_of_its_own_base(target: LoadedModel, own: Any) -> None:
    drafter = InProcessDrafter(random_trees(VOCAB_SIZE), feature_layers=(2,))
    with running_stand(target, drafter, kv_tokens=96, max_nodes=4) as stand:
        for running in [stand.start([n, 5, 6], 40, session_id=f"{n}") for n in (4, 7, 9)]:
            running.answer()
        assert stand.num_preemptions > 0
    for tokens, values, _ in heard(drafter):
        assert_features(values, own, tokens, (2,))


def test_features_after_a_prefix_hit_are_those_of_the_base(target: LoadedModel, own: Any) -> None:
    """Also where the hit leaves one row only, and where nothing of the prompt is computed again but that row."""
    drafter = InProcessDrafter(random_trees(VOCAB_SIZE), feature_layers=(1, 3))
    prompts = [[4 + n % 7 for n in range(length)] for length in (8, 9, 13, 13, 22)]
    with running_stand(target, drafter) as stand:
        for place, prompt in enumerate(prompts):
            stand.generate(prompt, 6, session_id=f"{place}")
        stand.settle()
        assert stand.sample("specgrove:prefix_cache_hits_total") == 8 + 8 + 12 + 12
    bases = list(heard(drafter))
    assert len(bases) >= 2 * len(prompts)
    for tokens, values, _ in bases:
        assert_features(values, own, tokens, (1, 3))


def test_a_drafter_that_lost_its_place_gets_the_features_again(target: LoadedModel, own: Any) -> None:
    lost: list[int] = []

    def lose_once(drafter: InProcessDrafter, mirror: Mirror) -> None:
        if len(mirror.token_ids) > 6 and not lost:
            lost.append(len(mirror.token_ids))
            drafter.decline(mirror, lost_place=True)
        else:
            drafter.decline(mirror)

    drafter = InProcessDrafter(respond=lose_once, feature_layers=(1, 2))
    with running_stand(target, drafter) as stand:
        stand.generate(PROMPT, MAX_TOKENS)
    openings = [(tokens, values) for tokens, values, num_new in heard(drafter) if num_new == len(tokens)]
    assert [len(tokens) for tokens, _ in openings] == [len(PROMPT) + 1, lost[0]]
    assert_features(openings[1][1], own, openings[1][0], (1, 2))


def test_a_drafter_that_comes_in_mid_stream_does_without_until_the_next_commit(target: LoadedModel, own: Any) -> None:
    with running_stand(target, max_draft_wait_ms=50.0) as stand:
        running = stand.start(PROMPT, 200)
        running.next_step()
        late = InProcessDrafter(random_trees(VOCAB_SIZE), feature_layers=(3,))
        stand.attach(late)
        running.answer()
    bases = list(heard(late))
    assert bases[0][1] == b""
    assert len(bases) > 10
    for tokens, values, _ in bases[1:]:
        assert_features(values, own, tokens, (3,))


def feature_steps(stand: Stand) -> float:
    return stand.sample("specgrove:feature_steps_total")


def test_nothing_is_read_when_nobody_asks(target: LoadedModel) -> None:
    drafter = InProcessDrafter(random_trees(VOCAB_SIZE))
    with running_stand(target, drafter) as stand:
        stand.generate(PROMPT, MAX_TOKENS)
        assert feature_steps(stand) == 0
        stand.attach(InProcessDrafter(random_trees(VOCAB_SIZE), number=2, feature_layers=(1,)))
        stand.generate(PROMPT, MAX_TOKENS, speculation=SpeculationOptions(is_enabled=False))
        assert feature_steps(stand) == 0


def test_nothing_is_read_in_steps_after_which_no_draft_is_wanted(target: LoadedModel) -> None:
    drafter = InProcessDrafter(feature_layers=(1,))
    with running_stand(target, drafter, max_draft_wait_ms=1.0) as stand:
        stand.generate(PROMPT, 1)
        stand.generate(PROMPT, 2)
        assert feature_steps(stand) == 0


def test_nothing_is_read_while_a_long_prompt_is_only_written(target: LoadedModel) -> None:
    drafter = InProcessDrafter(feature_layers=(1,))
    with running_stand(target, drafter, max_step_rows=8, max_nodes=4, max_draft_wait_ms=1.0) as stand:
        stand.generate([7] * 60, 4)
        assert stand.num_forwards >= 11
        assert feature_steps(stand) == 2  # nothing is drafted after the last two


@pytest.mark.parametrize("layers", [(0,), (4,), (1, 9), (1, 1), (2**31,), (1,) * 4096])
def test_layers_the_target_cannot_serve_cost_the_drafter_its_features_only(
    target: LoadedModel, truth: list[int], layers: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    drafter = InProcessDrafter(knowing_trees([truth]), feature_layers=layers)
    with caplog.at_level(logging.WARNING), running_stand(target, drafter) as stand:
        answer = stand.generate(PROMPT, MAX_TOKENS)
        assert PROMPT + answer.token_ids == truth
        assert answer.stats.num_accepted_tokens > 0
        assert stand.sample("specgrove:feature_requests_refused_total") == 1
        assert feature_steps(stand) == 0
    assert all(values == b"" for _, values, _ in heard(drafter))
    assert len([record for record in caplog.records if "no features" in record.message]) == 1


@pytest.mark.parametrize("newest", [b"new", b""])
def test_commits_that_pile_up_carry_the_newest_features_or_none(newest: bytes) -> None:
    budget = DraftBudget(4, 2)
    opening = OpenSession(1, (4, 5), GREEDY, budget, (), b"old")
    commit = CommitTokens(1, 2, (6,), budget, b"old")
    for waiting in (opening, commit):
        merged = coalesce(waiting, CommitTokens(1, 3, (7,), budget, newest))
        assert isinstance(merged, OpenSession | CommitTokens)
        assert merged.features == newest
        assert merged.token_ids[-1] == 7
