"""The command's arguments, read once and checked before any work starts; all problems come in one message."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch

from specgrove.runtime.features import default_feature_layers
from specgrove_drafter.tuning.errors import SettingsError


class Boost(StrEnum):
    """What an SSM of a pool is tuned for, given those before it."""

    DROP = "drop"  # the positions that they do not predict
    MIXTURE = "mixture"  # the mean of their laws and its own


@dataclass(frozen=True, slots=True)
class SsmShape:
    """One SSM of the pool."""

    num_layers: int
    num_depths: int  # draft depths with feature maps; 0 = reads its own states only
    mlp_width: int  # channels of its MLPs; 0 = as many as the target has
    distil_minutes: float | None

    @property
    def described(self) -> str:
        """A short name of all but the time: checkpoints carry it."""
        return f"{self.num_layers}l{self.num_depths}d" + (f"{self.mlp_width}w" if self.mlp_width else "")


@dataclass(frozen=True, slots=True)
class Settings:
    """One tuning run."""

    target: str
    out: Path
    work_dir: Path
    resume: bool
    prompts: Path | None
    eval_prompts: Path | None
    eval_every: int
    start_from: Path | None
    tokens: int
    slots: int
    document_tokens: int
    feature_layers: str
    writers: int
    layers: tuple[int, ...]
    depths: tuple[int, ...]
    mlp_width: tuple[int, ...]
    boost: Boost
    covered_top: int
    draft_vocab_size: int
    fit_tokens: int
    ridge: float
    distil_minutes: tuple[float, ...] | None
    distil_steps: int | None
    learning_rate: float
    batch_tokens: int
    train_tables: bool
    stored: str
    threads: int
    device: str
    seed: int
    name: str
    licence: str

    def __post_init__(self) -> None:
        """Raises SettingsError with every problem found."""
        problems = [message for is_wrong, message in self._checks() if is_wrong]
        if problems:
            raise SettingsError(problems)

    def _checks(self) -> list[tuple[bool, str]]:
        is_used = self.work_dir.is_dir() and any(self.work_dir.iterdir())
        checks = [
            (self.prompts is not None and not self.prompts.is_file(), f"--prompts: no file {self.prompts}"),
            (
                self.eval_prompts is not None and not self.eval_prompts.is_file(),
                f"--eval-prompts: no file {self.eval_prompts}",
            ),
            (is_used and not self.resume, f"--work-dir: {self.work_dir} is not empty; add --resume to continue in it"),
            (self.out.exists() and not self.out.is_dir(), f"--out: {self.out} is a file"),
            (
                self.start_from is not None and not self.start_from.is_dir(),
                f"--start-from: no folder {self.start_from}",
            ),
            (
                self.distil_minutes is not None and self.distil_steps is not None,
                "--distil-minutes and --distil-steps: give one of them",
            ),
            (self.draft_vocab_size < 16, f"--draft-vocab-size: must be at least 16, not {self.draft_vocab_size}"),
            (self.document_tokens < 64, f"--document-tokens: must be at least 64, not {self.document_tokens}"),
            (self.ridge <= 0, f"--ridge: must be above 0, not {self.ridge}"),
            (not 0 < self.learning_rate < 0.1, f"--learning-rate: must lie in (0, 0.1), not {self.learning_rate}"),
            (
                not re.fullmatch(r"auto|none|[1-9]\d*(,[1-9]\d*)*", self.feature_layers),
                f"--feature-layers: must be auto, none or numbers like 10,20, not {self.feature_layers!r}",
            ),
            (not _is_device(self.device), f"--device: {self.device!r} is not a device of this machine"),
        ]
        counts = ("tokens", "slots", "writers", "covered_top", "fit_tokens", "batch_tokens", "threads", "eval_every")
        for flag in counts:
            value = getattr(self, flag)
            checks.append((value < 1, f"--{flag.replace('_', '-')}: must be at least 1, not {value}"))
        return checks + self._pool_checks()

    def _pool_checks(self) -> list[tuple[bool, str]]:
        num_ssms, minutes = len(self.layers), self.distil_minutes
        return [
            (min(self.layers) < 1, f"--layers: must be at least 1, not {min(self.layers)}"),
            (min(self.depths) < 0, f"--depths: must not be negative, not {min(self.depths)}"),
            (min(self.mlp_width) < 0, f"--mlp-width: must not be negative, not {min(self.mlp_width)}"),
            *(
                (len(values) not in (1, num_ssms), f"{flag}: give one number, or one for each of the {num_ssms} SSMs")
                for flag, values in (("--depths", self.depths), ("--mlp-width", self.mlp_width))
            ),
            (
                minutes is not None and len(minutes) not in (1, num_ssms),
                f"--distil-minutes: give one number, or one for each of the {num_ssms} SSMs",
            ),
            (minutes is not None and min(minutes) < 0, "--distil-minutes: must not be negative"),
            (self.distil_steps is not None and self.distil_steps < 0, "--distil-steps: must not be negative"),
            (
                self.boost is Boost.MIXTURE and self.covered_top > 1,
                "--covered-top: --boost mixture drops no positions; give one of them",
            ),
            (
                self.writers > 1 and self.device != "cpu",
                "--writers: several writers share a CPU; on a GPU raise --slots",
            ),
        ]

    @property
    def shapes(self) -> tuple[SsmShape, ...]:
        """The SSMs of the pool, in the order they are tuned."""
        num_ssms = len(self.layers)
        columns: list[tuple[float | None, ...]] = [self.depths, self.mlp_width, self.distil_minutes or (None,)]
        spread = [column * num_ssms if len(column) == 1 else column for column in columns]
        return tuple(SsmShape(*shape) for shape in zip(self.layers, *spread, strict=True))

    def folder_of(self, number: int) -> Path:
        """Where SSM `number`, from 1, goes: `--out` itself when it is the only one."""
        return self.out if len(self.layers) == 1 else self.out.with_name(f"{self.out.name}-{number}")

    def feature_layers_of(self, config: Any) -> tuple[int, ...]:
        """The inner layers to keep for a target with this `transformers` config; raises SettingsError."""
        if self.feature_layers in ("auto", "none"):
            return default_feature_layers(config.num_hidden_layers) if self.feature_layers == "auto" else ()
        layers = tuple(int(word) for word in self.feature_layers.split(","))
        if max(layers) >= config.num_hidden_layers:
            present = config.num_hidden_layers
            raise SettingsError([f"--feature-layers: must lie below the target's last layer, {present}, not {layers}"])
        return layers

    def command(self) -> str:
        """The command line that makes the same SSM, with folders by their names only."""
        words = ["specgrove-tune", "--target", self.name]
        for flag, value in self._named_paths():
            if value is not None:
                words += [flag, value.name]
        shown = ["eval_every"] if self.eval_prompts is not None else []
        shown += ["tokens", "slots", "writers", "document_tokens", "feature_layers", "layers", "depths"]
        shown += ["mlp_width"] if any(self.mlp_width) else []
        if len(self.layers) > 1:
            shown += ["boost", "covered_top"] if self.boost is Boost.DROP else ["boost"]
        shown += ["draft_vocab_size", "fit_tokens", "ridge"]
        shown += ["distil_minutes", "distil_steps", "learning_rate", "batch_tokens", "stored", "seed"]
        for name in shown:
            value = getattr(self, name)
            if value is not None:
                text = ",".join(f"{part:g}" for part in value) if isinstance(value, tuple) else str(value)
                words += [f"--{name.replace('_', '-')}", text]
        words += ["--train-tables"] if self.train_tables else []
        return " ".join([*words, "--work-dir", self.work_dir.name, "--out", self.out.name])

    def _named_paths(self) -> list[tuple[str, Path | None]]:
        return [
            ("--prompts", self.prompts),
            ("--eval-prompts", self.eval_prompts),
            ("--start-from", self.start_from),
        ]


def _is_device(name: str) -> bool:
    try:
        device = torch.device(name)
    except RuntimeError:
        return False
    return device.type == "cpu" or (device.type == "cuda" and torch.cuda.is_available())


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def _amounts(text: str) -> tuple[float, ...]:
    return tuple(float(word) for word in text.split(","))


def read_settings(arguments: Sequence[str]) -> Settings:
    """Settings from a command line; argparse itself ends the program on unknown or unreadable arguments."""
    parser = argparse.ArgumentParser(
        prog="specgrove-tune",
        description="Make a small speculative model (SSM) for a target: the target writes its own training text, a "
        "closed-form fit starts the SSM from the target's first layers, distillation finishes it.",
    )
    add = parser.add_argument
    add("--target", required=True, help="folder or hub id of a decoder-only language model")
    add("--out", required=True, type=Path, help="where the finished SSM goes; replaced as a whole if it exists")
    add("--work-dir", required=True, type=Path, help="generated text and checkpoints; needed to resume")
    add("--resume", action="store_true", help="continue in a work folder that is already in use")
    add("--prompts", type=Path, help="prompts to answer (.jsonl or one a line); default: the target writes its own")
    add("--eval-prompts", type=Path, help="prompts to measure on after training, answered greedily with 96 tokens")
    add("--eval-every", type=int, default=1, help="use every n-th evaluation prompt (default 1)")
    add(
        "--start-from", type=Path, help="an SSM of the same shape that this command made: the first SSM goes on from it"
    )
    add("--tokens", type=int, default=1_000_000, help="how much text the target writes (default 1000000)")
    add("--slots", type=int, default=128, help="documents written side by side (default 128)")
    add("--document-tokens", type=int, default=640, help="longest document (default 640)")
    add(
        "--feature-layers",
        default="auto",
        help="inner layers whose states are kept beside the final ones, like 10,20; auto: a third and two thirds of "
        "the way up; none: no features (default auto)",
    )
    add("--writers", type=int, default=1, help="processes that write text side by side on a CPU (default 1)")
    add("--layers", type=_counts, default=(2,), help="layers of the SSM; 2,1 makes a pool of two SSMs (default 2)")
    add(
        "--depths",
        type=_counts,
        default=(4,),
        help="draft depths with feature maps, one number or one for each SSM; 0: no features (default 4)",
    )
    add(
        "--mlp-width",
        type=_counts,
        default=(0,),
        help="channels kept of each MLP, the strongest first, one number or one for each SSM; 0: all (default 0)",
    )
    add(
        "--boost",
        choices=[boost.value for boost in Boost],
        default=Boost.DROP.value,
        help="in a pool: tune the next SSM on what those before it do not predict (drop), or on everything, so that "
        "the mean of their laws and its own is the target's (mixture) (default drop)",
    )
    add(
        "--covered-top",
        type=int,
        default=1,
        help="for --boost drop: positions where the target's choice is among an SSM's first n are dropped for the "
        "next (default 1)",
    )
    add("--draft-vocab-size", type=int, default=8192, help="the SSM's vocabulary, 'other' included (default 8192)")
    add("--fit-tokens", type=int, default=131_072, help="how many tokens the closed-form fit reads (default 131072)")
    add("--ridge", type=float, default=1e-3, help="strength of the fit's ridge, relative (default 1e-3)")
    add(
        "--distil-minutes",
        type=_amounts,
        help="time for distillation, one number or one for each SSM (default 30 when no steps are given; 0 skips it)",
    )
    add("--distil-steps", type=int, help="optimizer steps for distillation instead of a time")
    add("--learning-rate", type=float, default=6e-4, help="peak learning rate (default 6e-4)")
    add("--batch-tokens", type=int, default=2048, help="tokens in one optimizer step (default 2048)")
    add("--train-tables", action="store_true", help="train embedding and head rows too: for millions of tokens")
    add(
        "--stored",
        choices=("float16", "int8"),
        default="float16",
        help="how weights are written: float16 loads anywhere, int8 (a scale a row) is half as large and loads in "
        "specgrove (default float16)",
    )
    add("--threads", type=int, default=torch.get_num_threads(), help="CPU threads (default: torch's choice)")
    add("--device", default="cpu", help="cpu, cuda or cuda:N (default cpu)")
    add("--seed", type=int, default=0, help="seed of prompts, sampling and batch order (default 0)")
    add("--name", default="", help="the name of the target in the model card (default: its folder's name)")
    add("--licence", default="apache-2.0", help="the target's licence, for the card (default apache-2.0)")
    values = vars(parser.parse_args(arguments))
    if values["distil_minutes"] is None and values["distil_steps"] is None:
        values["distil_minutes"] = (30.0,)
    values["boost"] = Boost(values["boost"])
    values["name"] = values["name"] or Path(values["target"]).name
    return Settings(**{field.name: values[field.name] for field in fields(Settings)})
