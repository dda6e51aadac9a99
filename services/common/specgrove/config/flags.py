"""The command line, cut into settings. Unlike argparse it collects every problem instead of stopping at the first."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field

from specgrove.config.setting import Setting
from specgrove.config.values import BoolKind

HELP_FLAGS = ("--help", "-h")
PRINT_CONFIG_FLAG = "--print-config"


@dataclass(slots=True)
class ParsedFlags:
    """What the command line says: raw texts by setting name (the last one wins), and what is wrong with it."""

    texts: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    wants_help: bool = False
    wants_print: bool = False


def parse_flags(settings: Sequence[Setting], argv: Sequence[str]) -> ParsedFlags:
    """Reads `--flag value`, `--flag=value`, `--switch` and `--no-switch`."""
    by_flag = {known.flag: known for known in settings}
    negative = {known.negative_flag: known for known in settings if isinstance(known.kind, BoolKind)}
    parsed = ParsedFlags()
    position = 0
    while position < len(argv):
        word = argv[position]
        position += 1
        flag, equals, text = word.partition("=")
        if word in HELP_FLAGS:
            parsed.wants_help = True
        elif word == PRINT_CONFIG_FLAG:
            parsed.wants_print = True
        elif word in negative:
            parsed.texts[negative[word].name] = "false"
        elif flag not in by_flag:
            parsed.problems.append(_unknown(word, flag, [*by_flag, *negative, PRINT_CONFIG_FLAG, *HELP_FLAGS]))
            if flag.startswith("--") and not equals and position < len(argv) and not argv[position].startswith("--"):
                position += 1  # its value; naming it as a second problem would only confuse
        elif equals:
            parsed.texts[by_flag[flag].name] = text
        elif isinstance(by_flag[flag].kind, BoolKind):
            parsed.texts[by_flag[flag].name] = "true"
        elif position < len(argv) and not argv[position].startswith("--"):
            parsed.texts[by_flag[flag].name] = argv[position]
            position += 1
        else:
            parsed.problems.append(f"{flag} needs a value: {flag} {by_flag[flag].kind.label}")
    return parsed


def _unknown(word: str, flag: str, known: list[str]) -> str:
    if not word.startswith("-"):
        return f"unexpected argument {word!r}: every setting is a flag; see --help"
    return f"unknown flag {flag}" + suggestion(flag.replace("_", "-"), known)


def suggestion(word: str, known: Sequence[str]) -> str:
    """` (did you mean X?)` for the nearest of `known`, or nothing."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.7)
    return f" (did you mean {near[0]}?)" if near else ""
