"""Memory by address, for kernels that work on many arrays at once: one call serves all shards of an index.

Addresses are uint64; whoever passes one keeps the memory alive. Usable in kernels only.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_BYTE_POINTER = ir.IntType(8).as_pointer()
_INT32 = ir.IntType(32)


def _prefetch(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_BYTE_POINTER, _INT32, _INT32, _INT32])
        function = builder.module.declare_intrinsic("llvm.prefetch", (_BYTE_POINTER,), kind)
        pointer = builder.inttoptr(arguments[0], _BYTE_POINTER)
        builder.call(function, [pointer, _INT32(0), _INT32(3), _INT32(1)])
        return context.get_dummy_value()

    return types.void(types.uint64), generate


def _array_at(element: Any) -> Any:
    """A kernel function (address, count) -> array of `element` at the address, without a copy."""

    def to_pointer(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(pointer_type))

        return pointer_type(types.uint64), generate

    pointer_type: Any = types.CPointer(element)  # type: ignore[no-untyped-call]
    pointer: Any = intrinsic(to_pointer)
    view: Any = numba.carray  # type: ignore[attr-defined]

    def array_at(address: Any, count: Any) -> Any:
        return view(pointer(address), count)

    return numba.njit(nogil=True)(array_at)


# Ask for the cache line at an address, to be used soon; never faults.
prefetch: Any = intrinsic(_prefetch)

_LINE_BYTES = 64


@numba.njit(nogil=True)
def prefetch_bytes(address: Any, size: Any) -> None:
    """Ask for all cache lines of `size` bytes at an address; rows seldom begin on a line."""
    for offset in range(0, size, _LINE_BYTES):
        prefetch(address + np.uint64(offset))
    prefetch(address + np.uint64(size - 1))


floats_at: Any = _array_at(types.float32)
uint64_at: Any = _array_at(types.uint64)
uint32_at: Any = _array_at(types.uint32)
uint16_at: Any = _array_at(types.uint16)
uint8_at: Any = _array_at(types.uint8)
