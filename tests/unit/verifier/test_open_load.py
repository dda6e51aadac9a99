"""What is over the limits is refused before any work is done, with advice."""

from __future__ import annotations

import pytest

from specgrove.errors import ConfigError, Overloaded
from specgrove.runtime.loading import LoadedModel
from specgrove_verifier.assembly import load_limits
from specgrove_verifier.config import VerifierConfig
from specgrove_verifier.open_load import LoadLimits, OpenLoad, RefusalReason
from support.engine_stand import running_stand


def test_generations_and_tokens_have_a_limit_each_and_leave_room_when_they_go() -> None:
    refusals: list[RefusalReason] = []
    load = OpenLoad(LoadLimits(max_generations=2, max_tokens=100), refusals.append)
    load.check(100)
    load.enter(70)
    with pytest.raises(Overloaded, match="70 tokens are running or waiting here and 31 more are over the limit of 100"):
        load.check(31)
    load.check(30)
    load.enter(30)
    with pytest.raises(Overloaded, match="2 generations are running or waiting") as caught:
        load.check(1)
    assert caught.value.retry_after_s > 0
    assert refusals == [RefusalReason.TOKENS, RefusalReason.SESSIONS]
    load.leave(70)
    load.check(70)


def test_the_token_limit_follows_the_cache_unless_it_is_set() -> None:
    config = VerifierConfig(model="m", kv_tokens=1024, max_sessions=3, max_waiting=4)
    assert load_limits(config) == LoadLimits(7, 16 * 1024)
    assert load_limits(VerifierConfig(model="m", kv_tokens=1024, max_open_tokens=2000)).max_tokens == 2000


def test_a_token_limit_that_refuses_prompts_which_fit_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match="max_open_tokens must be 0 or at least kv_tokens"):
        VerifierConfig(model="m", kv_tokens=1024, max_open_tokens=1023)


def test_who_waits_too_long_for_a_place_is_refused_and_the_others_go_on(target: LoadedModel) -> None:
    with running_stand(target) as stand:
        expected = stand.generate([5, 6], 200).token_ids
    with running_stand(target, max_sessions=1, max_waiting_s=0.02) as stand:
        running = stand.start([5, 6], 200)
        running.next_step()
        waiting, resumed = stand.start([7, 8], 5), stand.start([7, 8], 5, committed=[9])
        with pytest.raises(Overloaded, match=r"no place became free within 0\.02 s") as caught:
            waiting.answer()
        assert caught.value.retry_after_s == pytest.approx(0.02)
        assert running.answer().token_ids == expected
        assert len(resumed.answer().token_ids) == 4  # it had begun elsewhere: its client is in the middle of a text
        stand.settle()
        assert stand.sample("specgrove:admission_rejections_total", reason="waiting_time") == 1
        stand.assert_empty()


def test_without_a_limit_nobody_is_refused_for_waiting(target: LoadedModel) -> None:
    with running_stand(target, max_sessions=1, max_waiting_s=0) as stand:
        first, second = stand.start([5, 6], 100), stand.start([7, 8], 5)
        assert len(first.answer().token_ids) == 100
        assert len(second.answer().token_ids) == 5
