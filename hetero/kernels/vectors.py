"""Vectors of eight float32 as values in kernels, for sums that LLVM may not reorder by itself and so leaves scalar.

A vector is a value like a number: it lives in a register. On CPUs with narrower registers LLVM takes two or four.
`multiply_add8` rounds once where the CPU can (FMA) and twice elsewhere; so results are equal on CPUs of one kind.
Addresses are uint64 and need no alignment. Usable in kernels only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 8

_FLOAT = ir.FloatType()
_INT32 = ir.IntType(32)
_INTS = ir.VectorType(_INT32, LANES)
_HALVES = ir.VectorType(ir.IntType(16), LANES)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_FLOAT_ALIGNMENT = 4
_HALF_ALIGNMENT = 2
_QUIET_NAN = 0x7FC0


class _Float8(types.Type):
    def __init__(self) -> None:
        super().__init__(name="float32x8")


class _Float8Model(models.PrimitiveModel):
    def __init__(self, manager: Any, frontend: Any) -> None:
        super().__init__(manager, frontend, _VECTOR)  # type: ignore[no-untyped-call]


register_model(_Float8)(_Float8Model)
float8: Any = _Float8()


def _intrinsic(result: Any, parameters: tuple[Any, ...], emit: Callable[[Any, tuple[Any, ...]], Any]) -> Any:
    """A kernel function of `parameters`; emit: (LLVM builder, their values) -> the value of the result."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = emit(builder, arguments)
        return context.get_dummy_value() if value is None else value

    signature = result(*parameters)
    count = len(parameters)
    typings: dict[int, Callable[..., Any]] = {
        0: lambda typing_context: (signature, generate),
        1: lambda typing_context, a: (signature, generate),
        2: lambda typing_context, a, b: (signature, generate),
        3: lambda typing_context, a, b, c: (signature, generate),
        8: lambda typing_context, a, b, c, d, e, f, g, h: (signature, generate),
    }
    return intrinsic(typings[count])


def _zero(builder: Any, values: tuple[Any, ...]) -> Any:
    return ir.Constant(_VECTOR, [0.0] * LANES)


def _load(builder: Any, values: tuple[Any, ...]) -> Any:
    return builder.load(builder.inttoptr(values[0], _VECTOR.as_pointer()), align=_FLOAT_ALIGNMENT)


def _store(builder: Any, values: tuple[Any, ...]) -> None:
    builder.store(values[1], builder.inttoptr(values[0], _VECTOR.as_pointer()), align=_FLOAT_ALIGNMENT)


def _load_bf16(builder: Any, values: tuple[Any, ...]) -> Any:
    """A bf16 is the upper half of a float32."""
    halves = builder.load(builder.inttoptr(values[0], _HALVES.as_pointer()), align=_HALF_ALIGNMENT)
    return builder.bitcast(builder.shl(builder.zext(halves, _INTS), _ints(16)), _VECTOR)


def _store_bf16(builder: Any, values: tuple[Any, ...]) -> None:
    """Rounded to the nearest, ties to even: what is cut off is first made to carry."""
    bits = builder.bitcast(values[1], _INTS)
    odd = builder.and_(builder.lshr(bits, _ints(16)), _ints(1))
    halves = builder.trunc(builder.lshr(builder.add(bits, builder.add(odd, _ints(0x7FFF))), _ints(16)), _HALVES)
    missing = builder.fcmp_unordered("uno", values[1], values[1])
    halves = builder.select(missing, ir.Constant(_HALVES, [_QUIET_NAN] * LANES), halves)
    builder.store(halves, builder.inttoptr(values[0], _HALVES.as_pointer()), align=_HALF_ALIGNMENT)


def _ints(number: int) -> Any:
    return ir.Constant(_INTS, [number] * LANES)


def _splat(builder: Any, values: tuple[Any, ...]) -> Any:
    number = builder.load(builder.inttoptr(values[0], _FLOAT.as_pointer()), align=_FLOAT_ALIGNMENT)
    return _fill(builder, (number,))


def _fill(builder: Any, values: tuple[Any, ...]) -> Any:
    single = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), values[0], _INT32(0))
    return builder.shuffle_vector(single, ir.Constant(_VECTOR, ir.Undefined), _lanes((0,) * LANES))


def _add(builder: Any, values: tuple[Any, ...]) -> Any:
    return builder.fadd(*values)


def _subtract(builder: Any, values: tuple[Any, ...]) -> Any:
    return builder.fsub(*values)


def _divide(builder: Any, values: tuple[Any, ...]) -> Any:
    return builder.fdiv(*values)


def _all_below(builder: Any, values: tuple[Any, ...]) -> Any:
    """A comparison with NaN is false."""
    bits = builder.and_(builder.bitcast(values[0], _INTS), _ints(0x7FFFFFFF))
    below = builder.fcmp_ordered("<", builder.bitcast(bits, _VECTOR), _fill(builder, values[1:]))
    mask = builder.bitcast(below, ir.IntType(LANES))
    return builder.icmp_unsigned("==", mask, ir.Constant(ir.IntType(LANES), (1 << LANES) - 1))


def _multiply(builder: Any, values: tuple[Any, ...]) -> Any:
    return builder.fmul(*values)


def _multiply_add(builder: Any, values: tuple[Any, ...]) -> Any:
    kind = ir.FunctionType(_VECTOR, [_VECTOR, _VECTOR, _VECTOR])
    declared: Any = cgutils.get_or_insert_function
    return builder.call(declared(builder.module, kind, "llvm.fmuladd.v8f32"), values)


# Which lanes of two vectors, numbered 0 to 15, stand side by side; each is one instruction of AVX.
_LOW_SINGLES, _HIGH_SINGLES = (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)
_LOW_PAIRS, _HIGH_PAIRS = (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)
_LOW_HALVES, _HIGH_HALVES = (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)


def _sums(builder: Any, values: tuple[Any, ...]) -> Any:
    """Halve the number of vectors three times: what was lane 0 of eight vectors ends as eight lanes of one."""
    for low, high in ((_LOW_SINGLES, _HIGH_SINGLES), (_LOW_PAIRS, _HIGH_PAIRS), (_LOW_HALVES, _HIGH_HALVES)):
        values = tuple(
            builder.fadd(*(builder.shuffle_vector(left, right, _lanes(mask)) for mask in (low, high)))
            for left, right in zip(values[::2], values[1::2], strict=True)
        )
    return values[0]


def _lanes(mask: tuple[int, ...]) -> Any:
    return ir.Constant(ir.VectorType(_INT32, LANES), list(mask))


def _not_below_zero(builder: Any, values: tuple[Any, ...]) -> Any:
    zero = ir.Constant(_VECTOR, [0.0] * LANES)
    return builder.select(builder.fcmp_ordered("<", values[0], zero), zero, values[0])


def _where_positive(builder: Any, values: tuple[Any, ...]) -> Any:
    zero = ir.Constant(_VECTOR, [0.0] * LANES)
    return builder.select(builder.fcmp_ordered("<=", values[0], zero), zero, values[1])


zero8: Any = _intrinsic(float8, (), _zero)

# The eight floats at an address; store8(address, vector) writes them.
load8: Any = _intrinsic(float8, (types.uint64,), _load)
store8: Any = _intrinsic(types.void, (types.uint64, float8), _store)

# The eight bf16 at an address, as floats; store8_bf16(address, vector) rounds and writes them.
load8_bf16: Any = _intrinsic(float8, (types.uint64,), _load_bf16)
store8_bf16: Any = _intrinsic(types.void, (types.uint64, float8), _store_bf16)

# Eight times the float at an address; eight times a float.
splat8: Any = _intrinsic(float8, (types.uint64,), _splat)
fill8: Any = _intrinsic(float8, (types.float32,), _fill)

# a + b and a * b: a sum of products of these is rounded twice.
add8: Any = _intrinsic(float8, (float8, float8), _add)
multiply8: Any = _intrinsic(float8, (float8, float8), _multiply)

# a - b and a / b
subtract8: Any = _intrinsic(float8, (float8, float8), _subtract)
divide8: Any = _intrinsic(float8, (float8, float8), _divide)

# Whether all of eight floats are numbers below a float in magnitude.
all_below8: Any = _intrinsic(types.boolean, (float8, types.float32), _all_below)

# a * b + c
multiply_add8: Any = _intrinsic(float8, (float8, float8, float8), _multiply_add)

# Lane k of the result is the sum of the lanes of vector k: ((0 + 2) + (1 + 3)) + ((4 + 6) + (5 + 7)).
sums8: Any = _intrinsic(float8, (float8,) * LANES, _sums)

# max(x, 0), and NaN stays NaN.
not_below_zero8: Any = _intrinsic(float8, (float8,), _not_below_zero)

# b where not a <= 0, else 0: so b too where a is NaN.
where_positive8: Any = _intrinsic(float8, (float8, float8), _where_positive)
