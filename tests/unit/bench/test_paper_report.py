"""From options to files: what a run writes, and what it says when it cannot."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from specgrove.errors import ConfigError, InvalidInput
from specgrove.text import Tokenizer
from specgrove.tree import TokenTree
from specgrove_bench.paper.__main__ import main
from specgrove_bench.paper.counts import ByCategory, StepCounts, Success
from specgrove_bench.paper.options import parse_options
from specgrove_bench.paper.progress import Progress, Task, Tick
from specgrove_bench.paper.prompt_choice import PromptChoice, choose_prompts
from specgrove_bench.paper.reach import Mark
from specgrove_bench.paper.table import Line, Table, markdown, two_places

_CATEGORIES = ("math", "qa", "writing")


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    rows = [{"category": _CATEGORIES[number % 3], "turns": [f"question{number}", "ignored"]} for number in range(9)]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def chat_folder(target_folder: Path) -> Path:
    """The tiny target, which has no chat template of its own."""
    config = target_folder / "tokenizer_config.json"
    settings = json.loads(config.read_text())
    settings["chat_template"] = "{% for message in messages %}{{ message.content }}{% endfor %}"
    config.write_text(json.dumps(settings))
    return target_folder


def _run(argv: list[str], folder: Path) -> dict[str, object]:
    assert main([*argv, "--out", str(folder)]) == 0
    report: dict[str, object] = json.loads((folder / "paper.json").read_text())
    return report


@pytest.fixture
def argv(chat_folder: Path, ssm_folders: tuple[Path, ...], prompt_file: Path) -> list[str]:
    given = ["--target", str(chat_folder), "--ssm", *map(str, ssm_folders), "--prompts", str(prompt_file)]
    return [*given, "--max-tokens", "6", "--max-nodes", "5", "--max-depth", "3"]


def test_a_run_writes_every_table_in_three_forms(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = _run([*argv, "--every", "2", "--batch", "4"], tmp_path / "out")
    text = (tmp_path / "out" / "paper.md").read_text()
    for letter in "abcdef":
        assert f"### {letter}. " in text
    assert "naive, sampled" in text
    assert "2 chains <1,1,1,1> merged" in text
    assert "pool + model-free" in text
    assert {table["letter"] for table in report["tables"]} == set("abcdef")  # type: ignore[attr-defined]
    ElementTree.parse(tmp_path / "out" / "paper.svg")
    heard = capsys.readouterr().err
    assert "batch 2 of 2, 1 of" in heard
    assert "left" in heard
    # Every second prompt of each category.
    assert [prompt["category"] for prompt in report["prompts"]] == [*_CATEGORIES, *_CATEGORIES]  # type: ignore[attr-defined]


def test_only_the_tables_that_are_asked_for_are_measured(argv: list[str], tmp_path: Path) -> None:
    report = _run([*argv, "--tables", "b", "--num-prompts", "2"], tmp_path)
    findings = report["findings"]
    assert isinstance(findings, dict)
    assert findings["widths"]
    assert findings["lineups"] == []
    assert findings["costs"] is None
    assert {table["letter"] for table in report["tables"]} == {"b"}  # type: ignore[attr-defined]


def test_batches_do_not_change_what_static_trees_find(argv: list[str], tmp_path: Path) -> None:
    whole, halves = (
        _run([*argv, "--tables", "b,d", "--num-prompts", "4", "--batch", size], tmp_path / size) for size in ("4", "2")
    )
    assert whole["findings"] == halves["findings"]


def test_categories_add_up_to_all() -> None:
    sums: ByCategory[StepCounts] = ByCategory()
    tree = TokenTree((9, 1, 2, 3), (-1, 0, 1, 0), (0, 1, 3, 2))
    for category, accepted in (("qa", (1, 2)), ("math", (3,)), ("qa", ())):
        counts = StepCounts()
        counts.record(tree, accepted, len(accepted) + 1)
        sums.add(category, counts)
    total, qa = sums.total(), sums.get("qa")
    assert total is not None
    assert qa is not None
    assert (total.num_steps, total.num_committed, total.num_nodes) == (3, 6, 9)
    assert (qa.tokens_per_step, total.tokens_per_step) == (2.0, 2.0)
    assert dict(total.accepted_by_depth) == {1: 2, 2: 1}
    assert dict(total.accepted_by_member) == {0: 2, 1: 2}
    assert dict(total.accepted_alone) == {0: 1, 1: 1}


def test_long_answers_weigh_more_than_short_ones() -> None:
    sums: ByCategory[Success] = ByCategory()
    sums.add("short", Success.of_places([0]))
    sums.add("long", Success.of_places([9, 9, 9]))
    total = sums.total()
    assert total is not None
    assert total.rates[0] == 0.25


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--tables", "a,z"], "--tables: no table z"),
        (["--tables", ""], "--tables: no table named"),
        (["--temperature", "0"], "--temperature must be above 0"),
        (["--max-tokens", "1"], "--max-tokens must be at least 2"),
        (["--every", "-1"], "--every must be at least 0"),
        (["--batch", "0"], "--batch must be at least 1"),
        (["--seed", "-3"], "seed must be between"),
        (["--prompts", "/nowhere.jsonl"], "--prompts: there is no file /nowhere.jsonl"),
        (["--nodes", "3"], "unrecognized arguments"),
        (["--max-nodes", "many"], "invalid int value"),
    ],
)
def test_bad_options_are_refused_by_name(argv: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_options(argv)
    assert main(argv) == 2
    assert named in capsys.readouterr().err


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(["--max-tokens", "0", "--max-depth", "0", "--tables", "q"])
    assert len(caught.value.problems) == 3


def _choice(path: Path, **changes: object) -> PromptChoice:
    given: dict[str, object] = {"count": 4, "every": 0, "categories": (), "max_prompt_tokens": 50, **changes}
    return PromptChoice(path, **given)  # type: ignore[arg-type]


def test_categories_take_turns_and_can_be_chosen(prompt_file: Path, chat_folder: Path) -> None:
    tokenizer = Tokenizer.load(chat_folder)
    names = [prompt.category for prompt in choose_prompts(_choice(prompt_file), tokenizer)]
    assert names == ["math", "qa", "writing", "math"]
    chosen = choose_prompts(_choice(prompt_file, categories=("qa",), every=1), tokenizer)
    assert [prompt.category for prompt in chosen] == ["qa"] * 3
    with pytest.raises(InvalidInput, match="no category poetry .* there are math, qa, writing"):
        choose_prompts(_choice(prompt_file, categories=("poetry",)), tokenizer)
    with pytest.raises(InvalidInput, match="holds no prompt of 2 to 3 tokens"):
        choose_prompts(_choice(prompt_file, max_prompt_tokens=3), tokenizer)


@pytest.mark.parametrize(
    "line", ["{", '{"category": "qa"}', '{"category": "qa", "turns": []}', '["qa"]', '{"category": "qa", "turns": [1]}']
)
def test_a_broken_line_is_named(line: str, prompt_file: Path, chat_folder: Path) -> None:
    prompt_file.write_text('{"category": "qa", "turns": ["fine"]}\n\n' + line + "\n")
    with pytest.raises(InvalidInput, match="line 3"):
        choose_prompts(_choice(prompt_file), Tokenizer.load(chat_folder))


def test_time_left_follows_the_pace_so_far() -> None:
    now, heard = 0.0, list[str]()
    progress = Progress(40.0, heard.append, clock=lambda: now)

    def lasting(seconds: float) -> Callable[[Tick], None]:
        def run(tick: Tick) -> None:
            nonlocal now
            now += seconds / 2
            tick(0.5)
            now += seconds / 2

        return run

    # Estimated at 20 seconds each, and each takes 40.
    progress.run([Task("first", 20.0, lasting(40.0)), Task("second", 20.0, lasting(40.0))], "batch")
    assert heard == [
        "batch, 1 of 2: first; about 40 s left",
        "    50%; about 60 s left",
        "    40 s",
        "batch, 2 of 2: second; about 40 s left",
        "    50%; about 20 s left",
        "    40 s",
    ]


def test_marks_say_which_side_is_wanted() -> None:
    assert Mark("speed", 2.5, 2.4).is_reached
    assert not Mark("cost", 0.2, 0.1, is_ceiling=True).is_reached
    assert "wanted at most 0.10: not reached" in Mark("cost", 0.2, 0.1, is_ceiling=True).line()


def test_cells_that_were_not_measured_are_dashes() -> None:
    table = Table("x", "title", "corner", ("one", "two"), (Line("row", (1.0, None)),))
    assert markdown(table, two_places).splitlines()[-1] == "| row | 1.00 | - |"
    with pytest.raises(ValueError, match="needs 2 cells"):
        Table("x", "title", "corner", ("one", "two"), (Line("row", (1.0,)),))
