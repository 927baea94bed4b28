"""Memory by address, for kernels that work on many arrays at once: one call serves all shards of an index.

Addresses are uint64; whoever passes one keeps the array alive. Loads and stores are of the element at `address`.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hetero.records import F32

_BYTE_POINTER = ir.IntType(8).as_pointer()
_INT32 = ir.IntType(32)


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line at an address, to be read or written soon; never faults."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_BYTE_POINTER, _INT32, _INT32, _INT32])
        function = builder.module.declare_intrinsic("llvm.prefetch", (_BYTE_POINTER,), kind)
        pointer = builder.inttoptr(arguments[0], _BYTE_POINTER)
        builder.call(function, [pointer, _INT32(0), _INT32(3), _INT32(1)])
        return context.get_dummy_value()

    return types.void(types.uint64), generate


def _pointer_to(element: Any) -> Any:
    @intrinsic
    def pointer(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(types.CPointer(element)))

        return types.CPointer(element)(types.uint64), generate

    return pointer


_float32_pointer = _pointer_to(types.float32)
_uint64_pointer = _pointer_to(types.uint64)
_uint32_pointer = _pointer_to(types.uint32)
_uint16_pointer = _pointer_to(types.uint16)


@numba.njit(nogil=True)
def floats_at(address: np.uint64, count: int) -> F32:
    """float32 [count] at an address, as an array without a copy."""
    view: F32 = numba.carray(_float32_pointer(address), count)
    return view


@numba.njit(nogil=True)
def uint64_at(address: np.uint64, count: int) -> Any:
    """uint64 [count] at an address."""
    return numba.carray(_uint64_pointer(address), count)


@numba.njit(nogil=True)
def uint32_at(address: np.uint64, count: int) -> Any:
    """uint32 [count] at an address."""
    return numba.carray(_uint32_pointer(address), count)


@numba.njit(nogil=True)
def uint16_at(address: np.uint64, count: int) -> Any:
    """uint16 [count] at an address."""
    return numba.carray(_uint16_pointer(address), count)
