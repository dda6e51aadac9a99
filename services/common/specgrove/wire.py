"""Between the wire and our own values: the one place where messages become dataclasses and back.

Everything that comes from the wire is checked here; what fails raises `InvalidInput` that names the field.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specgrove.draft import ChildLaw, Draft
from specgrove.draft_laws import MAX_LAW_LEN
from specgrove.errors import InvalidInput
from specgrove.outcome import FinishReason, SpeculationStats, TokenLogprobs
from specgrove.proto.v1 import generation_pb2, speculation_pb2
from specgrove.sampling.params import (
    MAX_EXPANSION_LEVELS,
    SamplingParams,
    SpeculationOptions,
    StopConditions,
    check_num_biases,
)
from specgrove.sampling.rules import Rule
from specgrove.tree import TokenTree

PROTOCOL_VERSION = 1


def sampling_to_proto(params: SamplingParams) -> generation_pb2.SamplingParams:
    return generation_pb2.SamplingParams(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seed=params.seed,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=dict(params.logit_bias),
    )


def sampling_from_proto(message: generation_pb2.SamplingParams) -> SamplingParams:
    check_num_biases(len(message.logit_bias))
    return SamplingParams(
        message.temperature,
        message.top_p,
        message.top_k,
        message.min_p,
        message.seed,
        message.repetition_penalty if message.HasField("repetition_penalty") else 1.0,
        message.presence_penalty,
        message.frequency_penalty,
        tuple(sorted(message.logit_bias.items())),
    )


def stop_to_proto(stop: StopConditions) -> generation_pb2.StopConditions:
    return generation_pb2.StopConditions(
        max_tokens=stop.max_tokens,
        min_tokens=stop.min_tokens,
        ignore_eos=stop.ignore_eos,
        stop_token_ids=stop.stop_token_ids,
        stop_strings=stop.stop_strings,
    )


def stop_from_proto(message: generation_pb2.StopConditions) -> StopConditions:
    return StopConditions(
        message.max_tokens,
        message.min_tokens,
        message.ignore_eos,
        tuple(message.stop_token_ids),
        tuple(message.stop_strings),
    )


def speculation_to_proto(options: SpeculationOptions) -> generation_pb2.SpeculationOptions:
    return generation_pb2.SpeculationOptions(
        disabled=not options.is_enabled,
        max_nodes=options.max_nodes,
        max_depth=options.max_depth,
        rule=rule_to_proto(options.rule),
        expansion=options.expansion,
    )


def speculation_from_proto(message: generation_pb2.SpeculationOptions) -> SpeculationOptions:
    return SpeculationOptions(
        not message.disabled,
        message.max_nodes,
        message.max_depth,
        rule_from_proto(message.rule),
        tuple(message.expansion[: MAX_EXPANSION_LEVELS + 1]),  # one too many is refused as a million are
    )


_RULES = {
    Rule.COUPLED: generation_pb2.VERIFICATION_RULE_COUPLED,
    Rule.MSS: generation_pb2.VERIFICATION_RULE_MSS,
    Rule.NAIVE: generation_pb2.VERIFICATION_RULE_NAIVE,
}


def rule_to_proto(rule: Rule | None) -> generation_pb2.VerificationRule:
    return generation_pb2.VERIFICATION_RULE_UNSPECIFIED if rule is None else _RULES[rule]


def rule_from_proto(value: int) -> Rule | None:
    """None when nothing was asked for; raises InvalidInput for a rule this version does not know."""
    if value == generation_pb2.VERIFICATION_RULE_UNSPECIFIED:
        return None
    for rule, number in _RULES.items():
        if number == value:
            return rule
    raise InvalidInput(f"unknown verification rule {value}; use {', '.join(_RULES)}", field="speculation.rule")


def tree_to_proto(
    session_key: int,
    base_len: int,
    base_hash: int,
    tree: TokenTree,
    draft_s: float = 0.0,
    laws: Sequence[ChildLaw] = (),
) -> speculation_pb2.TokenTree:
    """The message of `tree` under a base; the root is not sent."""
    return speculation_pb2.TokenTree(
        session_key=session_key,
        base_len=base_len,
        base_hash=base_hash,
        token_ids=tree.token_ids[1:],
        parents=tree.parents[1:],
        members=tree.members[1:],
        draft_s=draft_s,
        laws=[
            speculation_pb2.ChildLaw(parent=law.parent, token_ids=law.token_ids, probs=law.probs, draws=law.draws)
            for law in laws
        ],
    )


def draft_from_proto(message: speculation_pb2.TokenTree, *, max_nodes: int) -> Draft:
    """The draft in `message`, not yet compared with anything.

    Of lists that are longer than a draft within `max_nodes` can have, one entry too many is kept: enough to be refused,
    and a message that is all lists costs no more than a large draft.
    """
    cut = max_nodes + 1
    return Draft(
        message.session_key,
        message.base_len,
        message.base_hash,
        tuple(message.token_ids[:cut]),
        tuple(message.parents[:cut]),
        tuple(message.members[:cut]),
        message.draft_s,
        tuple(_law_from_proto(law, cut) for law in message.laws[:cut]),
    )


def _law_from_proto(law: speculation_pb2.ChildLaw, cut: int) -> ChildLaw:
    longest = MAX_LAW_LEN + 1
    return ChildLaw(law.parent, tuple(law.token_ids[:longest]), tuple(law.probs[:longest]), tuple(law.draws[:cut]))


def tree_from_proto(
    message: speculation_pb2.TokenTree, *, root_token_id: int, vocab_size: int, max_nodes: int, max_depth: int
) -> TokenTree:
    """The tree of `message` under `root_token_id`; raises what `Draft.to_tree` raises."""
    return draft_from_proto(message, max_nodes=max_nodes).to_tree(
        root_token_id, vocab_size=vocab_size, max_nodes=max_nodes, max_depth=max_depth
    )


def logprobs_to_proto(logprobs: Sequence[TokenLogprobs]) -> list[generation_pb2.TokenLogprobs]:
    return [
        generation_pb2.TokenLogprobs(
            logprob=token.logprob,
            top_token_ids=[token_id for token_id, _ in token.top],
            top_logprobs=[logprob for _, logprob in token.top],
        )
        for token in logprobs
    ]


def logprobs_from_proto(messages: Iterable[generation_pb2.TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
    return tuple(
        TokenLogprobs(message.logprob, tuple(zip(message.top_token_ids, message.top_logprobs, strict=False)))
        for message in messages
    )


_FINISH_REASONS = {
    FinishReason.STOP: generation_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: generation_pb2.FINISH_REASON_LENGTH,
}


def finish_reason_to_proto(reason: FinishReason) -> generation_pb2.FinishReason:
    return _FINISH_REASONS[reason]


def finish_reason_from_proto(value: int) -> FinishReason | None:
    """None while the generation goes on."""
    return next((reason for reason in FinishReason if finish_reason_to_proto(reason) == value), None)


def stats_to_proto(stats: SpeculationStats) -> generation_pb2.SpeculationStats:
    return generation_pb2.SpeculationStats(
        num_steps=stats.num_steps,
        num_drafts=stats.num_drafts,
        num_draft_tokens=stats.num_draft_tokens,
        num_accepted_tokens=stats.num_accepted_tokens,
        num_committed_tokens=stats.num_committed_tokens,
        accepted_per_pos=stats.accepted_per_pos,
        drafted_per_pos=stats.drafted_per_pos,
        prefill_s=stats.prefill_s,
        decode_s=stats.decode_s,
    )


def stats_from_proto(message: generation_pb2.SpeculationStats) -> SpeculationStats:
    return SpeculationStats(
        num_steps=message.num_steps,
        num_drafts=message.num_drafts,
        num_draft_tokens=message.num_draft_tokens,
        num_accepted_tokens=message.num_accepted_tokens,
        num_committed_tokens=message.num_committed_tokens,
        accepted_per_pos=list(message.accepted_per_pos),
        drafted_per_pos=list(message.drafted_per_pos),
        prefill_s=message.prefill_s,
        decode_s=message.decode_s,
    )
