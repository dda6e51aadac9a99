"""Eight float32 as one value in compiled functions, where the compiler's own vectorising would not do.

Arrays are addressed flat, whatever their shape, and must be contiguous. Eight, because processors that split 512
bits in two (Zen 4) are no faster with sixteen, and few rows fill eight sooner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from specgrove_kernels.cpu.compiled import compiled_in_order

WIDTH = 8

_FLOATS = ir.VectorType(ir.FloatType(), WIDTH)
_INTS = ir.VectorType(ir.IntType(32), WIDTH)


class _LanesType(types.Type):
    def __init__(self) -> None:
        super().__init__(name=f"float32x{WIDTH}")


lanes = _LanesType()


@register_model(_LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _FLOATS)


def _emitted(generator: Callable[..., Any]) -> Callable[..., Any]:
    """A function for compiled code whose instructions `generator` writes."""
    return intrinsic(generator)


def _address(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [offset])


def _broadcast(builder: Any, scalar: Any) -> Any:
    one = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, ir.Constant(_FLOATS, ir.Undefined), ir.Constant(_INTS, [0] * WIDTH))


def _call(builder: Any, name: str, *values: Any) -> Any:
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * len(values))
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{WIDTH}f32")
    return builder.call(function, values)


def _all_lanes(value: float) -> Any:
    return ir.Constant(_FLOATS, [value] * WIDTH)


@_emitted
def load(typing_context: Any, array: Any, offset: Any) -> Any:
    """The eight entries from flat place `offset` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments)
        return builder.load(builder.bitcast(address, _FLOATS.as_pointer()), align=4)

    return lanes(array, types.intp), generate


@_emitted
def store(typing_context: Any, array: Any, offset: Any, value: Any) -> Any:
    """Eight entries from flat place `offset` on become `value`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments[:2])
        builder.store(arguments[2], builder.bitcast(address, _FLOATS.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.none(array, types.intp, lanes), generate


@_emitted
def fetch_ahead(typing_context: Any, array: Any, offset: Any) -> Any:
    """Have flat place `offset` on its way from memory. No harm where there is no such place."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments)
        whole, place = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [place, whole, whole, whole])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [builder.bitcast(address, place), *(ir.Constant(whole, flag) for flag in (0, 3, 1))])
        return context.get_dummy_value()

    return types.none(array, types.intp), generate


@_emitted
def spread(typing_context: Any, array: Any, offset: Any) -> Any:
    """The entry at flat place `offset` in every lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _broadcast(builder, builder.load(_address(context, builder, signature.args[0], *arguments)))

    return lanes(array, types.intp), generate


@_emitted
def fill(typing_context: Any, value: Any) -> Any:
    """`value` in every lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _broadcast(builder, arguments[0])

    return lanes(types.float32), generate


@_emitted
def multiply_add(typing_context: Any, left: Any, right: Any, addend: Any) -> Any:
    """left * right + addend, rounded once where the processor can."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _call(builder, "fmuladd", *arguments)

    return lanes(lanes, lanes, lanes), generate


def _of_two(instruction: str) -> Any:
    """A function of two lanes that is one instruction of the compiler's."""

    def of_two(typing_context: Any, left: Any, right: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, instruction)(*arguments)

        return lanes(lanes, lanes), generate

    return _emitted(of_two)


add = _of_two("fadd")
subtract = _of_two("fsub")
multiply = _of_two("fmul")
divide = _of_two("fdiv")


@_emitted
def negate(typing_context: Any, value: Any) -> Any:
    """-value."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fneg(*arguments)

    return lanes(lanes), generate


@_emitted
def larger(typing_context: Any, left: Any, right: Any) -> Any:
    """The larger of both in each lane; `right` where `left` is NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        left_value, right_value = arguments
        return builder.select(builder.fcmp_ordered(">", left_value, right_value), left_value, right_value)

    return lanes(lanes, lanes), generate


@_emitted
def _nearest(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _call(builder, "rint", *arguments)

    return lanes(lanes), generate


@_emitted
def _times_power_of_two(typing_context: Any, value: Any, power: Any) -> Any:
    """value * 2 ** power; `power` holds whole numbers from -126 to 127."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value_, power_ = arguments
        biased = builder.add(builder.fptosi(power_, _INTS), ir.Constant(_INTS, [127] * WIDTH))
        return builder.fmul(value_, builder.bitcast(builder.shl(biased, ir.Constant(_INTS, [23] * WIDTH)), _FLOATS))

    return lanes(lanes, lanes), generate


@_emitted
def _within_range(typing_context: Any, exponent: Any, power: Any) -> Any:
    """`power`, but 0 where `exponent` is below -87 and infinite where it is above 88."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        exponent_, power_ = arguments
        is_low = builder.fcmp_ordered("<", exponent_, _all_lanes(-87.0))
        is_high = builder.fcmp_ordered(">", exponent_, _all_lanes(88.0))
        capped = builder.select(is_high, _all_lanes(float("inf")), power_)
        return builder.select(is_low, _all_lanes(0.0), capped)

    return lanes(lanes, lanes), generate


@compiled_in_order
def exp(value: Any) -> Any:
    """e ** value in each lane, within 2e-7 of it; 0 below -87, infinite above 88. NaN stays NaN.

    Cephes' expf: a polynomial on half a power of two to either side.
    """
    power = _nearest(multiply(value, fill(1.44269504088896341)))
    rest = multiply_add(power, fill(-0.693359375), value)
    rest = multiply_add(power, fill(2.12194440e-4), rest)
    series = fill(1.9875691500e-4)
    series = multiply_add(series, rest, fill(1.3981999507e-3))
    series = multiply_add(series, rest, fill(8.3334519073e-3))
    series = multiply_add(series, rest, fill(4.1665795894e-2))
    series = multiply_add(series, rest, fill(1.6666665459e-1))
    series = multiply_add(series, rest, fill(5.0000001201e-1))
    series = add(multiply_add(multiply(series, rest), rest, rest), fill(1.0))
    return _within_range(value, _times_power_of_two(series, power))
