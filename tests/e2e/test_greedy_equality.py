"""Greedy output is the target's own: with speculation as without, and without as `transformers` decodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from specgrove.proto.v1 import generation_pb2
from specgrove.text import Tokenizer
from specgrove_local.cluster import LocalCluster
from specgrove_local.models import shipped_ssms
from specgrove_local.options import ClusterOptions
from specgrove_local.ports import PortPicker
from support.exactness import LogitGap, TieCount, assert_equal_but_for_ties
from support.gateway_client import Ask, GatewayClient
from support.live_cluster import AHEAD_FLAGS, COMMITTED, STEPS, drafting, metric, ssm_flags
from support.prompts import chat_prompts
from support.transformers_reference import TransformersReference

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

_NUM_PROMPTS = 40
_NUM_TRANSFORMERS_PROMPTS = 10
_MAX_TOKENS = 64
_STREAM_TOKENS = 32
_COUPLED = generation_pb2.VERIFICATION_RULE_COUPLED
_MSS = generation_pb2.VERIFICATION_RULE_MSS
_NAIVE = generation_pb2.VERIFICATION_RULE_NAIVE


def test_speculation_changes_no_token_of_forty_prompts(
    cluster: LocalCluster, client: GatewayClient, tokenizer: Tokenizer, served_logit_gap: LogitGap, ties: TieCount
) -> None:
    prompts = chat_prompts(tokenizer, _NUM_PROMPTS)
    with drafting(cluster, *ssm_flags()) as drafter:
        plain = client.ask_all([Ask(prompt, _MAX_TOKENS, speculation=False) for prompt in prompts])
        speculative = client.ask_all([Ask(prompt, _MAX_TOKENS) for prompt in prompts])
        for folder in shipped_ssms():
            fed_rows = f'specgrove:drafter_num_feature_fed_rows_total{{member="{folder.name}"}}'
            assert metric(drafter, fed_rows) > 0, f"{folder.name} never saw the target's features"
        assert metric(drafter, "specgrove:drafter_num_refused_features_total") == 0
    assert not any(answer.stats.num_draft_tokens for answer in plain)
    assert sum(answer.stats.num_accepted_tokens for answer in speculative) > 0, "no draft token was ever accepted"
    num_tokens = sum(len(answer.token_ids) for answer in speculative)
    num_steps = sum(answer.stats.num_steps for answer in speculative)
    print(f"mean accepted length (bonus included) {num_tokens / num_steps:.2f} over {len(prompts)} prompts")
    assert_equal_but_for_ties(
        "greedy, speculation on and off",
        prompts,
        [answer.token_ids for answer in plain],
        [answer.token_ids for answer in speculative],
        served_logit_gap,
        ties,
    )


@pytest.mark.parametrize("ahead_flags", [("--ahead", "off"), AHEAD_FLAGS], ids=["ahead off", "ahead on"])
def test_no_rule_and_no_shape_changes_a_greedy_token(
    cluster: LocalCluster,
    client: GatewayClient,
    tokenizer: Tokenizer,
    served_logit_gap: LogitGap,
    ties: TieCount,
    ahead_flags: tuple[str, ...],
) -> None:
    prompts = chat_prompts(tokenizer, 4)
    plain = client.ask_all([Ask(prompt, _STREAM_TOKENS, speculation=False) for prompt in prompts])
    with drafting(cluster, *ssm_flags(), *ahead_flags):
        for rule, expansion in ((_MSS, ()), (_NAIVE, ()), (_MSS, (2, 2)), (_COUPLED, (1, 1, 3))):
            asks = [Ask(prompt, _STREAM_TOKENS, rule=rule, expansion=expansion) for prompt in prompts]
            answers = client.ask_all(asks, concurrency=4)
            assert sum(answer.stats.num_accepted_tokens for answer in answers) > 0
            assert_equal_but_for_ties(
                f"greedy, rule {rule} and shape {expansion}",
                prompts,
                [answer.token_ids for answer in plain],
                [answer.token_ids for answer in answers],
                served_logit_gap,
                ties,
            )


def test_eight_concurrent_streams_take_fewer_target_forwards_than_tokens_and_equal_their_solo_runs(
    cluster: LocalCluster, client: GatewayClient, tokenizer: Tokenizer, served_logit_gap: LogitGap, ties: TieCount
) -> None:
    prompts = chat_prompts(tokenizer, 8)
    asks = [Ask(prompt, _STREAM_TOKENS, ignore_eos=True) for prompt in prompts]
    verifier = cluster.verifiers[0]
    with drafting(cluster, *ssm_flags()):
        solo = [client.ask(ask) for ask in asks]
        steps, committed = metric(verifier, STEPS), metric(verifier, COMMITTED)
        together = client.ask_all(asks, concurrency=8)
        num_forwards = metric(verifier, STEPS) - steps
        num_committed = metric(verifier, COMMITTED) - committed
    print(f"{num_forwards:.0f} target forwards for {num_committed:.0f} tokens of {len(asks)} streams")
    assert num_committed == sum(len(answer.token_ids) for answer in together)
    assert num_forwards < num_committed
    assert_equal_but_for_ties(
        "greedy, eight streams together and alone",
        prompts,
        [answer.token_ids for answer in solo],
        [answer.token_ids for answer in together],
        served_logit_gap,
        ties,
    )


def test_plain_float32_decoding_equals_transformers_generate(
    target: Path, tokenizer: Tokenizer, ties: TieCount, tmp_path: Path
) -> None:
    prompts = chat_prompts(tokenizer, _NUM_TRANSFORMERS_PROMPTS)
    options = ClusterOptions(
        target=target,
        http_port=PortPicker().any_free(),
        num_drafters=0,
        weights="float32",
        run_dir=tmp_path,
        verifier_flags=("--max-nodes", "0"),
    )
    with LocalCluster(options) as float32, GatewayClient(float32.gateway_grpc_address) as client:
        served = client.ask_all([Ask(prompt, _MAX_TOKENS, speculation=False) for prompt in prompts])
    reference = TransformersReference(target, tokenizer.eos_token_ids)
    assert_equal_but_for_ties(
        "greedy float32, transformers' generate and the plain verifier",
        prompts,
        reference.generate(prompts, _MAX_TOKENS),
        [answer.token_ids for answer in served],
        reference.logit_gap,
        ties,
    )
