"""The JSON spelling of `logit_bias`: an object from token ids, as strings, to numbers."""

from __future__ import annotations

import re
from typing import Any

from specgrove.errors import InvalidInput
from specgrove.sampling.params import check_num_biases

_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")  # one spelling an id, or an id could come twice


def read_logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    """The entries by token id, their sizes and ids still unchecked. Raises InvalidInput (field `logit_bias`)."""
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise _wrong("logit_bias must be an object from token ids to numbers")
    check_num_biases(len(value))
    entries = []
    for token, bias in value.items():
        if not _TOKEN_ID.fullmatch(token):
            raise _wrong(f"logit_bias names {token[:50]!r}; its keys must be token ids in decimal digits")
        if isinstance(bias, bool) or not isinstance(bias, (int, float)):
            raise _wrong(f"logit_bias of token {token} must be a number")
        try:
            entries.append((int(token), float(bias)))
        except OverflowError:  # an integer of hundreds of digits
            raise _wrong(f"logit_bias of token {token} is too large") from None
    return tuple(sorted(entries))


def _wrong(message: str) -> InvalidInput:
    return InvalidInput(message, field="logit_bias")
