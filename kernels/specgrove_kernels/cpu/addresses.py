"""Arrays at addresses: how many matrices reach a compiled function as one table of whole numbers.

An array argument costs 0.2 us a call, and a model has dozens. The caller keeps what lies there alive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

from specgrove_kernels.cpu.compiled import compiled


def emitted(generator: Callable[..., Any]) -> Callable[..., Any]:
    """A function for compiled code whose instructions `generator` writes."""
    return intrinsic(generator)


@emitted
def _float_pointer(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.int64), generate


@compiled
def floats_at(address: int, length: int) -> Any:  # float32 [length]
    """The numbers that lie at `address`."""
    return carray(_float_pointer(address), (length,), np.float32)
