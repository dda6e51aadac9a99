"""Messages and values, there and back; what does not fit names its field."""

from __future__ import annotations

import math
from typing import Any

import pytest

from specgrove import wire
from specgrove.draft_laws import MAX_LAW_LEN, check_laws
from specgrove.errors import InvalidInput
from specgrove.outcome import FinishReason, SpeculationStats
from specgrove.proto.v1 import generation_pb2, speculation_pb2
from specgrove.sampling.params import SamplingParams, SpeculationOptions, StopConditions


def test_sampling_survives_the_wire() -> None:
    params = SamplingParams(
        temperature=0.5,
        top_p=0.25,
        top_k=7,
        min_p=0.125,
        seed=2**64 - 1,
        repetition_penalty=1.25,
        presence_penalty=-0.5,
        frequency_penalty=2.0,
        logit_bias=((3, -100.0), (70, 0.5)),
    )
    assert wire.sampling_from_proto(wire.sampling_to_proto(params)) == params


def test_an_empty_sampling_message_is_not_taken_for_defaults() -> None:
    """Proto zeros: greedy, and a top_p of 0 that nobody can have meant."""
    with pytest.raises(InvalidInput) as caught:
        wire.sampling_from_proto(generation_pb2.SamplingParams())
    assert caught.value.field == "top_p"


def test_stop_conditions_survive_the_wire() -> None:
    stop = StopConditions(9, 2, True, (3, 4), ("END", "é"))
    assert wire.stop_from_proto(wire.stop_to_proto(stop)) == stop


@pytest.mark.parametrize("options", [SpeculationOptions(), SpeculationOptions(False, 3, 2)])
def test_speculation_options_survive_the_wire(options: SpeculationOptions) -> None:
    assert wire.speculation_from_proto(wire.speculation_to_proto(options)) == options


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"temperature": 101.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
        ({"top_k": 2**32 - 1}, "top_k"),
        ({"min_p": -0.5}, "min_p"),
        ({"min_p": 1.5}, "min_p"),
    ],
)
def test_sampling_out_of_range_names_its_field(fields: dict[str, float], field: str) -> None:
    message = generation_pb2.SamplingParams(**{"temperature": 1.0, "top_p": 1.0, **fields})
    with pytest.raises(InvalidInput) as caught:
        wire.sampling_from_proto(message)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens"),
        ({"stop_strings": [""]}, "stop"),
        ({"stop_strings": ["x" * 1025]}, "stop"),
        ({"stop_strings": ["x"] * 17}, "stop"),
        ({"stop_token_ids": list(range(65))}, "stop_token_ids"),
    ],
)
def test_stop_conditions_out_of_range_name_their_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        wire.stop_from_proto(generation_pb2.StopConditions(**{"max_tokens": 8, **fields}))
    assert caught.value.field == field


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_has_64_bits(seed: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        SamplingParams(seed=seed)
    assert caught.value.field == "seed"


@pytest.mark.parametrize("field", ["max_nodes", "max_depth"])
def test_speculation_limits_are_not_negative(field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        SpeculationOptions(**{field: -1})
    assert caught.value.field == f"speculation.{field}"


def test_every_finish_reason_has_its_number() -> None:
    assert {reason: wire.finish_reason_to_proto(reason) for reason in FinishReason} == {
        FinishReason.STOP: generation_pb2.FINISH_REASON_STOP,
        FinishReason.LENGTH: generation_pb2.FINISH_REASON_LENGTH,
    }


def test_the_account_of_a_generation_reaches_the_wire_whole() -> None:
    stats = SpeculationStats(prefill_s=0.5, decode_s=1.5)
    stats.record_step(num_draft_nodes=0, tree_depth=0, num_accepted=0, num_committed=1)
    stats.record_step(num_draft_nodes=5, tree_depth=3, num_accepted=2, num_committed=3)
    stats.record_step(num_draft_nodes=4, tree_depth=2, num_accepted=0, num_committed=1)
    message = wire.stats_to_proto(stats)
    assert message == generation_pb2.SpeculationStats(
        num_steps=3,
        num_drafts=2,
        num_draft_tokens=9,
        num_accepted_tokens=2,
        num_committed_tokens=5,
        accepted_per_pos=[1, 1],
        drafted_per_pos=[2, 2, 1],
        prefill_s=0.5,
        decode_s=1.5,
    )


def test_a_tree_message_with_columns_of_different_length_is_refused() -> None:
    message = speculation_pb2.TokenTree(session_key=1, base_len=2, base_hash=3, token_ids=[1, 2], parents=[0])
    with pytest.raises(InvalidInput) as caught:
        wire.tree_from_proto(message, root_token_id=0, vocab_size=9, max_nodes=9, max_depth=9)
    assert caught.value.field == "parents"


def _laws(num_laws: int, *, num_tokens: int = 1, num_draws: int = 1) -> list[speculation_pb2.ChildLaw]:
    law = speculation_pb2.ChildLaw(
        token_ids=range(num_tokens), probs=[1 / num_tokens] * num_tokens, draws=[1] * num_draws
    )
    return [law] * num_laws


@pytest.mark.parametrize(
    "message",
    [
        speculation_pb2.TokenTree(token_ids=[1] * 5000, parents=[0] * 5000, members=[1] * 5000),
        speculation_pb2.TokenTree(token_ids=[1], parents=[0], members=[1] * 5000),
        speculation_pb2.TokenTree(token_ids=[1], parents=[0], laws=_laws(5000)),
        speculation_pb2.TokenTree(token_ids=[1], parents=[0], laws=_laws(1, num_tokens=5000)),
        speculation_pb2.TokenTree(token_ids=[1], parents=[0], laws=_laws(1, num_draws=5000)),
    ],
    ids=["nodes", "members", "laws", "a law's tokens", "a law's draws"],
)
def test_a_list_that_no_draft_can_have_is_refused_without_being_read_to_its_end(
    message: speculation_pb2.TokenTree,
) -> None:
    """A message of 8 MB can hold millions of laws, and the verifier's event loop is everybody's."""
    draft = wire.draft_from_proto(message, max_nodes=8)
    lists = [draft.token_ids, draft.parents, draft.members, draft.laws]
    lists += [column for law in draft.laws for column in (law.token_ids, law.probs, law.draws)]
    assert max(map(len, lists)) <= MAX_LAW_LEN + 1
    with pytest.raises(InvalidInput):
        tree = draft.to_tree(0, vocab_size=9999, max_nodes=8, max_depth=8)
        check_laws(tree, draft.laws, vocab_size=9999, max_draws=8)


@pytest.mark.parametrize("num_levels", [65, 100_000])
def test_an_expansion_of_too_many_levels_names_its_field(num_levels: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        wire.speculation_from_proto(generation_pb2.SpeculationOptions(expansion=[1] * num_levels))
    assert caught.value.field == "speculation.expansion"
