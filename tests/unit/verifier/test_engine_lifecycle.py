"""How generations enter and leave the engine: cancelled, refused, failed, stopped; and that nothing stays behind."""

from __future__ import annotations

import pytest

from specgrove.errors import ContextTooLong, InvalidInput, ModelNotFound, SpecgroveError, StaleEpoch
from specgrove.runtime.loading import LoadedModel
from specgrove_verifier.admission import Epochs
from support.engine_stand import InProcessDrafter, random_trees, running_stand
from support.generation_requests import make_request
from support.tiny_models import VOCAB_SIZE


def test_a_cancelled_generation_is_gone_before_the_next_step(target: LoadedModel) -> None:
    drafter = InProcessDrafter(random_trees(VOCAB_SIZE))
    with running_stand(target, drafter) as stand:
        running = stand.start([5, 6, 7], 200)
        running.next_step()
        stand.engine.cancel(running.generation)
        forwards = stand.num_forwards
        stand.assert_empty()
        assert stand.num_forwards <= forwards + 1
        assert [close.reason for close in drafter.closed] == ["cancelled"]


def test_cancelling_one_leaves_the_others(target: LoadedModel) -> None:
    with running_stand(target) as stand:
        expected = stand.generate([7, 8], 20).token_ids
        doomed, kept = stand.start([5, 6], 200), stand.start([7, 8], 20)
        doomed.next_step()
        stand.engine.cancel(doomed.generation)
        assert kept.answer().token_ids == expected
        stand.assert_empty()


def test_a_waiting_generation_can_be_cancelled(target: LoadedModel) -> None:
    with running_stand(target, max_sessions=1) as stand:
        first, second = stand.start([5], 200), stand.start([6], 5)
        first.next_step()
        stand.engine.cancel(second.generation)
        stand.engine.cancel(second.generation)
        stand.settle()
        assert (stand.engine.num_running, stand.engine.num_waiting) == (1, 0)
        stand.engine.cancel(first.generation)
        stand.assert_empty()


def test_a_generation_cancelled_in_the_middle_of_its_prompt_reads_no_further(
    target: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = InProcessDrafter(random_trees(VOCAB_SIZE))
    with running_stand(target, drafter, max_step_rows=16) as stand:
        real_run = stand.engine._forward.run
        doomed = make_request(list(range(5, 85)) * 2, 20)

        def run_and_cancel(batch: object) -> object:
            if stand.num_forwards == 2:
                stand.engine.cancel(doomed_running.generation)
            return real_run(batch)  # type: ignore[arg-type]

        monkeypatch.setattr(stand.engine._forward, "run", run_and_cancel)
        doomed_running = stand.submit(doomed)
        stand.until(lambda: stand.num_forwards == 3)
        stand.assert_empty()
        assert stand.num_forwards == 3, "160 tokens of prompt take ten steps of 16 rows"
        assert not drafter.updates, "nobody drafts under half a prompt"


def test_a_cancel_with_an_error_is_heard(target: LoadedModel) -> None:
    with running_stand(target) as stand:
        running = stand.start([5], 200)
        stand.engine.cancel(running.generation, StaleEpoch("taken over"))
        with pytest.raises(StaleEpoch):
            running.answer()
        stand.assert_empty()


def test_sessions_beyond_the_limit_wait_and_are_served(target: LoadedModel) -> None:
    with running_stand(target, max_sessions=2) as stand:
        expected = [stand.generate([token], 6).token_ids for token in range(5, 11)]
        running = [stand.start([token], 6) for token in range(5, 11)]
        assert [one.answer().token_ids for one in running] == expected


def test_the_end_of_the_engine_is_told_to_everybody(target: LoadedModel) -> None:
    with running_stand(target, max_sessions=1) as stand:
        running, waiting = stand.start([5], 250), stand.start([6], 250)
        running.next_step()
        stand.engine.stop()
        for one in (running, waiting):
            with pytest.raises(SpecgroveError, match="shutting down"):
                one.answer()


def test_a_failed_step_fails_its_generations_and_the_next_ones_are_served(
    target: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_stand(target) as stand:
        expected = stand.generate([5, 6], 5).token_ids
        real_run = stand.engine._forward.run
        calls = iter([RuntimeError("the device fell over")])

        def run_once_badly(batch: object) -> object:
            for error in calls:
                raise error
            return real_run(batch)  # type: ignore[arg-type]

        monkeypatch.setattr(stand.engine._forward, "run", run_once_badly)
        running = [stand.start([5, 6], 5), stand.start([7], 5)]
        with pytest.raises(SpecgroveError, match="step failed"):
            running[0].answer()
        stand.assert_empty() if running[1]._answer.finish_reason else stand.settle()
        assert stand.generate([5, 6], 5).token_ids == expected
        assert not stand.broke.is_set()


def test_an_engine_that_fails_again_and_again_says_that_it_is_broken(
    target: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_stand(target) as stand:

        def fail(batch: object) -> object:
            raise RuntimeError("the device is gone")

        monkeypatch.setattr(stand.engine._forward, "run", fail)
        for _ in range(3):
            with pytest.raises(SpecgroveError):
                stand.generate([5], 5)
        assert stand.broke.wait(5)


@pytest.mark.parametrize(
    ("change", "error", "field"),
    [
        ({"prompt": []}, InvalidInput, "prompt_token_ids"),
        ({"prompt": [5, VOCAB_SIZE]}, InvalidInput, "prompt_token_ids"),
        ({"prompt": [5] * 256}, ContextTooLong, "prompt_token_ids"),
        ({"committed": [VOCAB_SIZE]}, InvalidInput, "committed_token_ids"),
        ({"stop_token_ids": (VOCAB_SIZE + 4,)}, InvalidInput, "stop_token_ids"),
    ],
)
def test_a_wrong_request_is_refused_and_its_field_named(
    target: LoadedModel, change: dict[str, object], error: type[InvalidInput], field: str
) -> None:
    with running_stand(target) as stand:
        with pytest.raises(error) as caught:
            stand.submit(make_request(**{"prompt": [5], **change}))  # type: ignore[arg-type]
        assert caught.value.field == field
        stand.assert_empty()


def test_another_model_is_not_served(target: LoadedModel) -> None:
    with running_stand(target) as stand, pytest.raises(ModelNotFound, match="tiny"):
        stand.admission.check(make_request([5]), "gpt-5")


def test_the_context_is_what_the_cache_can_hold_beside_a_tree(target: LoadedModel) -> None:
    with running_stand(target, kv_tokens=64, max_nodes=7) as stand:
        with pytest.raises(ContextTooLong):
            stand.submit(make_request([5] * 56))
        answer = stand.generate([5] * 55, 40)
        assert len(answer.token_ids) == 1
        stand.assert_empty()


def test_a_session_runs_to_the_end_of_a_cache_that_holds_nothing_else(target: LoadedModel) -> None:
    drafter = InProcessDrafter(random_trees(VOCAB_SIZE))
    with running_stand(target, drafter, kv_tokens=64, max_nodes=7) as stand:
        assert len(stand.generate([5] * 3, 200).token_ids) == 56 - 3
        stand.assert_empty()


def test_an_older_epoch_is_refused_and_an_equal_one_is_not() -> None:
    epochs = Epochs()
    epochs.admit("a", 3)
    epochs.admit("a", 3)
    epochs.admit("b", 1)
    with pytest.raises(StaleEpoch, match="epoch 2 is older than 3"):
        epochs.admit("a", 2)
    epochs.admit("a", 4)


def test_the_metrics_account_for_the_tokens(target: LoadedModel) -> None:
    drafter = InProcessDrafter(random_trees(VOCAB_SIZE))
    with running_stand(target, drafter) as stand:
        answers = [stand.generate([token], 9) for token in (5, 6, 7)]
        stand.settle()
        assert stand.sample("specgrove:generation_tokens_total") == 27
        assert stand.sample("specgrove:num_steps_total") == stand.num_forwards
        assert stand.sample("specgrove:request_success_total", finished_reason="length") == 3
        drafted = sum(answer.stats.num_draft_tokens for answer in answers)
        assert stand.sample("specgrove:spec_decode_num_draft_tokens_total") == drafted
        accepted = sum(answer.stats.num_accepted_tokens for answer in answers)
        assert stand.sample("specgrove:spec_decode_num_accepted_tokens_total") == accepted
        assert stand.sample("specgrove:kv_cache_usage_perc") == 0
