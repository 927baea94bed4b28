"""The one way kernels are compiled: typed decorators around numba, with the flags that exactness needs.

Compiled code is kept in a folder named by all kernels' sources: numba itself looks only at the file of the kernel, and
would go on with machine code that holds older forms of the functions inlined from other files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import numba

P = ParamSpec("P")
R = TypeVar("R")

_HERE = Path(__file__).parent


def cache_base() -> Path:
    """The folder under which compiled kernels are kept: NUMBA_CACHE_DIR, else beside their sources, else the user's."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return Path(chosen)
    beside = _HERE / "__pycache__"
    return beside if os.access(beside if beside.is_dir() else _HERE, os.W_OK) else Path.home() / ".cache" / "hetero"


def _digest_of_sources() -> str:
    digest = hashlib.blake2b(digest_size=8)
    for source in sorted(_HERE.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


_CACHE = cache_base() / f"kernels-{_digest_of_sources()}"


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` on first use, cached on disk, without holding the GIL.

    No fast-math, so that every operation is one IEEE operation and results do not depend on the vector width;
    no `prange`: its default threading layer aborts on concurrent entry. Threads come from the caller's pool.
    """
    return _compiled(function)


def inline(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a small function that other kernels call; LLVM inlines it into them."""
    return _compiled(function)


def _compiled(function: Callable[P, R]) -> Callable[P, R]:
    config = numba.config  # numba reads the folder when it decorates, so this holds for our kernels alone
    before = config.CACHE_DIR  # type: ignore[attr-defined]
    config.CACHE_DIR = str(_CACHE)  # type: ignore[attr-defined]
    try:
        compiled: Callable[P, R] = numba.njit(nogil=True, cache=True, fastmath=False, error_model="numpy")(function)
    finally:
        config.CACHE_DIR = before  # type: ignore[attr-defined]
    return compiled
