"""The target's own text: right laws, independent of neighbours, the same again after an interruption."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specgrove_drafter.tuning import text_stages
from specgrove_drafter.tuning.errors import ResumeError
from specgrove_drafter.tuning.generate import Generator, draw, is_looping
from specgrove_drafter.tuning.hub import Target, load_target_model
from specgrove_drafter.tuning.prompts import ChatFrame, DocumentPlan, TurnLimits, synthetic_plan
from specgrove_drafter.tuning.settings import Settings, read_settings
from specgrove_drafter.tuning.shards import Document, Role, read_documents, read_shard, shards_on_disk, write_shard
from specgrove_drafter.tuning.slots import use_slot_attention

CPU = torch.device("cpu")


def settings_for(folder: Path, tmp_path: Path, *more: str) -> Settings:
    return read_settings(
        [
            "--target",
            str(folder),
            "--work-dir",
            str(tmp_path / "work"),
            "--out",
            str(tmp_path / "ssm"),
            "--threads",
            "1",
        ]
        + ["--slots", "24", "--document-tokens", "160", "--resume", "--distil-steps", "2", *more]
    )


def play(target: Target, plans: list[DocumentPlan], num_slots: int) -> list[Document]:
    model = load_target_model(target, CPU, pack=False)
    use_slot_attention(model)
    frame = ChatFrame.from_tokenizer(target.tokenizer, target.end_id)
    documents = Generator(model, frame, seed=3, num_slots=num_slots, capacity=200).play(iter(plans))
    return sorted(documents, key=lambda document: document.document_id)


def test_stored_law_is_the_plain_targets(target: Target) -> None:
    frame = ChatFrame.from_tokenizer(target.tokenizer, target.end_id)
    plans = [synthetic_plan(frame, 3, number) for number in range(11)]
    plain = load_target_model(target, CPU, pack=False)
    for document in play(target, plans, num_slots=4):
        output = plain.model(input_ids=document.tokens.long()[None]).last_hidden_state[0]
        logprobs = plain.lm_head(output).log_softmax(-1)
        kept = document.roles != Role.UNSEEN
        got = document.top_logprobs[kept].float()
        torch.testing.assert_close(got, logprobs[kept].gather(1, document.top_ids[kept].long()), atol=6e-3, rtol=2e-3)
        torch.testing.assert_close(got[:, 0], logprobs[kept].max(-1).values, atol=6e-3, rtol=2e-3)
        torch.testing.assert_close(document.states[kept].float(), output[kept], atol=6e-3, rtol=2e-3)


def test_greedy_answer_is_the_targets_choice_and_roles_say_who_spoke(target: Target) -> None:
    frame = ChatFrame.from_tokenizer(target.tokenizer, target.end_id)
    words = tuple(target.tokenizer.encode("Why is the sky blue today?", add_special_tokens=False)) + frame.to_answer
    plan = DocumentPlan(0, frame.opening(None), words, TurnLimits(0, 20), 1, 0.0)
    (document,) = play(target, [plan], num_slots=2)
    answered = (document.roles == Role.ANSWER).nonzero().flatten()
    assert int(answered[0]) == len(plan.opening) + len(words) - 1, "the answer starts after the answer's header"
    follows = document.tokens[answered[:-1] + 1]
    assert torch.equal(follows, document.top_ids[answered[:-1], 0])


def test_a_document_does_not_depend_on_its_neighbours(target: Target) -> None:
    frame = ChatFrame.from_tokenizer(target.tokenizer, target.end_id)
    plans = [synthetic_plan(frame, 3, number) for number in range(9)]
    together, alone = play(target, plans, num_slots=9), play(target, plans, num_slots=1)
    assert len({len(document) for document in together}) > 1
    for one, other in zip(together, alone, strict=True):
        assert torch.equal(one.tokens, other.tokens)
        assert torch.equal(one.roles, other.roles)


def test_resumed_generation_writes_the_same_shards(target: Target, target_folder: Path, tmp_path: Path) -> None:
    settings = settings_for(target_folder, tmp_path, "--tokens", "9000")
    shards = text_stages.claim_work_dir(settings, target)
    text_stages.generate(settings, target, shards)
    whole = {document.document_id: document for document in read_documents(shards)}
    assert len(shards_on_disk(shards)) >= 2
    (shards / "shard-00000.safetensors").unlink()
    (shards / "shard-00001.partial").write_bytes(b"torn")
    text_stages.generate(settings, target, shards)
    again = read_shard(shards, 0)
    assert [document.document_id for document in again] == list(range(32))
    for document in again:
        assert torch.equal(document.tokens, whole[document.document_id].tokens)
        assert torch.equal(document.top_ids[:, 0], whole[document.document_id].top_ids[:, 0])


def test_work_folder_of_another_run_is_refused(target: Target, target_folder: Path, tmp_path: Path) -> None:
    settings = settings_for(target_folder, tmp_path)
    text_stages.claim_work_dir(settings, target)
    text_stages.claim_work_dir(settings, target)
    with pytest.raises(ResumeError, match="different seed"):
        text_stages.claim_work_dir(replace(settings, seed=99), target)


def test_shards_keep_documents_as_they_were(tmp_path: Path, make_document: Callable[[int, int], Document]) -> None:
    documents = [make_document(number, 5 + number) for number in (2, 0, 1)]
    assert write_shard(tmp_path, 4, documents) == 18
    assert shards_on_disk(tmp_path) == [4]
    for found, number in zip(read_shard(tmp_path, 4), (1, 2, 0), strict=True):
        for name in ("tokens", "roles", "top_ids", "top_logprobs", "states"):
            assert torch.equal(getattr(found, name), getattr(documents[number], name))


def test_draw_follows_the_law_inside_the_nucleus() -> None:
    chance = torch.Generator().manual_seed(0)
    law = torch.tensor([0.5, 0.3, 0.15, 0.05])
    drawn = [draw(law.log().tolist(), 1.0, 0.9, chance) for _ in range(4000)]
    shares = torch.bincount(torch.tensor(drawn), minlength=4) / 4000
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.3, 0.15, 0.0]) / 0.95, atol=0.03, rtol=0)


def test_prompt_kinds_vary_and_plans_repeat(target: Target) -> None:
    frame = ChatFrame.from_tokenizer(target.tokenizer, target.end_id)
    plans = [synthetic_plan(frame, 1, number) for number in range(60)]
    assert plans == [synthetic_plan(frame, 1, number) for number in range(60)]
    assert len({plan.forced for plan in plans}) > 25
    assert {1, 2} <= {plan.num_turns for plan in plans} <= {1, 2, 3}
    greedy = sum(plan.temperature == 0 for plan in plans)
    assert 30 < greedy < 60


def test_loops_are_noticed() -> None:
    assert is_looping([1, 2, 3] * 30, 90)
    assert not is_looping(list(range(90)), 90)
    assert not is_looping([1, 2, 3] * 30, 20), "what others wrote does not count"
    assert not is_looping([int(x) for x in itertools.islice(map(abs, range(-45, 45)), 90)], 90)
