"""Which library multiplies float32 matrices best on this CPU: torch's (MKL in its wheels) or numpy's (OpenBLAS).

MKL is made for Intel's CPUs. On a Zen 3 core (4096 x 367 x 512 and the like) both reach 78 GFLOP/s while the machine's
other core is idle; while it works MKL falls to 60 (torch 2.13, MKL 2024.2), OpenBLAS 0.3.31 to 69. A tower always has
neighbours, so AMD CPUs get numpy's. numpy's threads are switched off for this: a tower splits rows over its own.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import numpy as np  # noqa: F401  # loads its OpenBLAS, which is looked for below

from hetero.hardware.probe import cpu_model_and_flags

_SETTERS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads")


@cache
def numpy_multiplies_better() -> bool:
    """Whether matrices are to be multiplied by numpy in this process, whose OpenBLAS then uses one thread a call.

    False on CPUs that are not AMD's, and where numpy has another library or its threads cannot be set.
    """
    model, _ = cpu_model_and_flags()
    return "AMD" in model and single_threaded_openblas()


def single_threaded_openblas() -> bool:
    """Have every OpenBLAS loaded in this process, numpy's among them, use one thread a call; whether there is one."""
    found = False
    for library in _loaded_openblas():
        for name in _SETTERS:
            setter = getattr(library, name, None)
            if setter is not None:
                setter(1)
                found = True
                break
    return found


def _loaded_openblas() -> list[ctypes.CDLL]:
    """Libraries of this process whose file is named for OpenBLAS; none where the system does not list them."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    files = {line.split(maxsplit=5)[5] for line in lines if "openblas" in line and len(line.split(maxsplit=5)) == 6}
    return [ctypes.CDLL(file) for file in sorted(files)]
