"""A generation ends at the token that ends it, wherever in an accepted path that token stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from specgrove.outcome import FinishReason
from specgrove.runtime.loading import LoadedModel
from specgrove.sampling.params import SamplingParams
from support.engine_stand import Answer, InProcessDrafter, Stand, knowing_trees, running_stand
from support.tiny_models import text_of

PROMPT = [9, 30, 41]
SAMPLING = SamplingParams(temperature=1.0, seed=21)
MAX_DEPTH = 5
LONG = 20


@pytest.fixture(scope="module")
def stands(target: LoadedModel) -> Iterator[tuple[Stand, Stand, list[int]]]:
    """The same target plainly and with a drafter that knows everything, and the tokens to expect without any stop."""
    with running_stand(target) as plain:
        tokens = plain.generate(PROMPT, LONG + 10, sampling=SAMPLING).token_ids
        drafter = InProcessDrafter(knowing_trees([PROMPT + tokens]))
        with running_stand(target, drafter, max_depth=MAX_DEPTH, max_nodes=MAX_DEPTH) as drafted:
            yield plain, drafted, tokens


@pytest.fixture(scope="module")
def both(stands: tuple[Stand, Stand, list[int]]) -> Callable[..., Answer]:
    """Generate on both, expect the same answer, and return the drafted one."""
    plain, drafted, _ = stands

    def generate(max_tokens: int = LONG, **settings: object) -> Answer:
        with_trees = drafted.generate(PROMPT, max_tokens, sampling=SAMPLING, **settings)
        without = plain.generate(PROMPT, max_tokens, sampling=SAMPLING, **settings)
        assert with_trees.token_ids == without.token_ids
        assert with_trees.finish_reason == without.finish_reason
        assert with_trees.stop_string == without.stop_string
        _check_account(with_trees)
        _check_account(without)
        drafted.assert_empty()
        return with_trees

    return generate


@pytest.fixture(scope="module")
def tokens(stands: tuple[Stand, Stand, list[int]]) -> list[int]:
    return stands[2]


def _check_account(answer: Answer) -> None:
    stats = answer.stats
    assert stats.num_committed_tokens == len(answer.token_ids)
    assert stats.num_steps == len(answer.steps)
    assert stats.accepted_per_pos == sorted(stats.accepted_per_pos, reverse=True)
    assert sum(stats.accepted_per_pos) == stats.num_accepted_tokens <= stats.num_committed_tokens
    assert stats.num_accepted_tokens <= stats.num_draft_tokens
    assert all(
        accepted <= drafted for accepted, drafted in zip(stats.accepted_per_pos, stats.drafted_per_pos, strict=False)
    )
    assert stats.num_committed_tokens <= stats.num_accepted_tokens + stats.num_steps


def _first_place(tokens: list[int], *, after: int) -> int:
    """The first place from `after` on whose token did not come before it."""
    return next(place for place in range(after, LONG) if tokens[place] not in tokens[:place])


@pytest.mark.parametrize("max_tokens", range(1, MAX_DEPTH + 3))
def test_max_tokens_cuts_inside_a_path(both: Callable[..., Answer], tokens: list[int], max_tokens: int) -> None:
    answer = both(max_tokens)
    assert answer.token_ids == tokens[:max_tokens]
    assert answer.finish_reason == FinishReason.LENGTH


@pytest.mark.parametrize("after", range(MAX_DEPTH + 2))
def test_a_stop_token_ends_the_answer_and_is_part_of_it(
    both: Callable[..., Answer], tokens: list[int], after: int
) -> None:
    place = _first_place(tokens, after=after)
    answer = both(stop_token_ids=(tokens[place],))
    assert answer.token_ids == tokens[: place + 1]
    assert answer.finish_reason == FinishReason.STOP


@pytest.mark.parametrize("after", range(1, MAX_DEPTH + 2))
def test_a_stop_string_ends_the_answer_with_the_token_that_completes_it(
    both: Callable[..., Answer], tokens: list[int], after: int
) -> None:
    text = text_of(tokens)
    start = next(start for start in range(after, LONG) if text.find(text[start : start + 3]) == start)
    stop_string = text[start : start + 3]
    answer = both(stop_strings=("\x00", stop_string))
    assert text_of(answer.token_ids) == text[: start + 3]
    assert answer.finish_reason == FinishReason.STOP
    assert answer.stop_string == stop_string


def test_a_stop_string_before_min_tokens_does_not_count(both: Callable[..., Answer], tokens: list[int]) -> None:
    answer = both(stop_strings=(text_of(tokens)[1:3],), min_tokens=10)
    assert len(answer.token_ids) >= 10


@pytest.mark.parametrize("min_tokens", [1, 3, 8])
def test_no_stop_token_is_drawn_before_min_tokens(
    target: LoadedModel, both: Callable[..., Answer], tokens: list[int], min_tokens: int
) -> None:
    """Suppression changes the law of the first tokens, so only agreement and the account are compared here."""
    with running_stand(target) as stand:
        stops = tuple(set(tokens[:6]))
        expected = stand.generate(
            PROMPT, LONG, sampling=SAMPLING, stop_token_ids=stops, min_tokens=min_tokens
        ).token_ids
        assert not set(expected[:min_tokens]) & set(stops)
        drafter = InProcessDrafter(knowing_trees([PROMPT + expected]))
        with running_stand(target, drafter, max_depth=MAX_DEPTH) as drafted:
            answer = drafted.generate(PROMPT, LONG, sampling=SAMPLING, stop_token_ids=stops, min_tokens=min_tokens)
            assert answer.token_ids == expected
            _check_account(answer)


def test_min_tokens_equal_to_max_tokens_leaves_the_length(both: Callable[..., Answer], tokens: list[int]) -> None:
    answer = both(4, min_tokens=4, stop_strings=(text_of(tokens)[0],))
    assert len(answer.token_ids) == 4
    assert answer.finish_reason == FinishReason.LENGTH


def test_a_stop_token_in_the_last_place_is_a_stop(both: Callable[..., Answer], tokens: list[int]) -> None:
    place = _first_place(tokens, after=3)
    assert both(place + 1, stop_token_ids=(tokens[place],)).finish_reason == FinishReason.STOP


def test_the_end_of_the_context_ends_the_answer(target: LoadedModel) -> None:
    prompt = [5] * 246
    with running_stand(target) as plain:
        expected = plain.generate(prompt, 100, sampling=SAMPLING)
        assert len(expected.token_ids) == 256 - 246
        assert expected.finish_reason == FinishReason.LENGTH
    with running_stand(target, InProcessDrafter(knowing_trees([prompt + expected.token_ids]))) as drafted:
        answer = drafted.generate(prompt, 100, sampling=SAMPLING)
        assert answer.token_ids == expected.token_ids
        drafted.assert_empty()


def test_end_of_sequence_stops_unless_it_is_ignored(target: LoadedModel) -> None:
    """A seed whose sixth or later token is </s>, found by looking."""
    with running_stand(target) as plain:
        for seed in range(60):
            sampling = SamplingParams(temperature=1.5, seed=seed)
            ignored = plain.generate(PROMPT, 16, sampling=sampling).token_ids
            if 2 in ignored[1:]:
                break
        else:
            pytest.fail("no seed gives the end of the sequence")
        obeyed = plain.generate(PROMPT, 16, sampling=sampling, ignore_eos=False)
        place = ignored.index(2)
        assert obeyed.token_ids == ignored[: place + 1]
        assert obeyed.finish_reason == FinishReason.STOP
        assert ignored[: place + 1] != ignored
    with running_stand(target, InProcessDrafter(knowing_trees([PROMPT + ignored]))) as drafted:
        answer = drafted.generate(PROMPT, 16, sampling=sampling, ignore_eos=False)
        assert (answer.token_ids, answer.finish_reason) == (obeyed.token_ids, FinishReason.STOP)
        drafted.assert_empty()


def test_nothing_is_drafted_that_could_not_be_kept(target: LoadedModel) -> None:
    """With two tokens to go there is room for one draft token; with one, for none."""
    budgets: list[int] = []
    drafter = InProcessDrafter(lambda mirror: budgets.append(mirror.budget.max_depth))
    with running_stand(target, drafter, max_depth=5, max_draft_wait_ms=0.0) as stand:
        stand.generate(PROMPT, 7)
        stand.settle()
        assert budgets == [5, 4, 3, 2, 1]
        assert [update.budget.max_nodes for update in drafter.updates[:-1]] == [8] * 5 + [0]  # type: ignore[union-attr]
