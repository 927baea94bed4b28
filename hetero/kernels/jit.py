"""The one way kernels are compiled: typed decorators around numba, with the flags that exactness needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numba

P = ParamSpec("P")
R = TypeVar("R")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` on first use, cached on disk, without holding the GIL.

    No fast-math, so that every operation is one IEEE operation and results do not depend on the vector width;
    no `prange`: its default threading layer aborts on concurrent entry. Threads come from the caller's pool.
    """
    compiled: Callable[P, R] = numba.njit(nogil=True, cache=True, fastmath=False, error_model="numpy")(function)
    return compiled


def inline(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a small function that other kernels call; LLVM inlines it into them."""
    compiled: Callable[P, R] = numba.njit(nogil=True, cache=True, fastmath=False, inline="never", error_model="numpy")(
        function
    )
    return compiled
