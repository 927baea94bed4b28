"""The rows of one exported table, mapped into memory and looked up in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hetero.errors import DataError
from hetero.kernels.mix import mix64_reference
from hetero.kernels.slots import find_in_slots
from hetero.records import F32, U64
from hetero.serving.layout import KEYS, STARTS, VALUES, ServedTable


class MappedTable:
    """Rows by key. Threads may look up at the same time. Raises DataError when a file does not fit the manifest."""

    def __init__(self, spec: ServedTable, *, folder: Path) -> None:
        self.spec = spec
        inside = folder / spec.folder
        self._keys = _mapped(inside / KEYS, shape=(spec.rows,), kind=np.uint64)
        self._values = _mapped(inside / VALUES, shape=(spec.rows, spec.dim), kind=np.float32)
        self._starts = _mapped(inside / STARTS, shape=((1 << spec.slot_bits) + 1,), kind=np.int64)
        self._shift = np.uint64(64 - spec.slot_bits)
        self._mixed_seed = mix64_reference(np.array([spec.seed], np.uint64))[0]

    def lookup(self, keys: U64) -> F32:
        """Values of keys uint64 [U]: float32 [U, dim]; the table's default where a key is not there."""
        found = np.empty(len(keys), np.int64)
        wanted = np.require(keys, np.uint64, ("C", "A", "W"))
        find_in_slots(self._keys, self._starts, self._shift, self._mixed_seed, wanted, found)
        values = np.full((len(keys), self.spec.dim), self.spec.default, np.float32)
        there = found >= 0
        values[there] = self._values[found[there]]
        return values


def _mapped(path: Path, *, shape: tuple[int, ...], kind: type[np.generic]) -> npt.NDArray[Any]:
    """The array in a .npy file, read-only; an empty one cannot be mapped, and is made."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False) if shape[0] else np.empty(shape, kind)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be mapped ({error}); export the model anew") from error
    if array.shape != shape or array.dtype != kind:
        raise DataError(
            f"{path}: holds {array.dtype} {array.shape}, the manifest says {np.dtype(kind)} {shape}; export anew"
        )
    plain = array.view(np.ndarray)
    plain.flags.writeable = False
    return plain
