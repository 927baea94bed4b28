"""The tower's archive, opened only when nothing in it would run code by being opened.

`torch.export.load` unpickles what an archive says is pickled, and loads compiled libraries. Exported towers have
neither: their weights are raw bytes, their graph is JSON.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hetero.errors import DataError

Tower = Callable[..., Tensor]
_EXPECTED = re.compile(
    r"archive_(format|version)|byteorder|\.data/[a-z_]+|models/[\w-]+\.json|"
    r"data/(weights|constants)/(\w+_config\.json|(weight|tensor)_\d+)|data/sample_inputs/[\w-]+\.pt"
)


def load_tower(path: Path) -> Tower:
    """The graph in an archive, as a function. Raises DataError for one that cannot be read or holds code."""
    try:
        _refuse_code(path)
        tower: Tower = torch.export.load(path).module()
    except (OSError, ValueError, RuntimeError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: holds no exported tower ({error}); export the model anew") from error
    return tower


def _refuse_code(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            inner = name.split("/", 1)[-1]
            if _EXPECTED.fullmatch(inner) is None:
                raise DataError(f"{path}: holds {inner!r}, which is no part of an exported tower and was not opened")
            if inner.endswith("_config.json") and _names_pickle(json.loads(archive.read(name))):
                raise DataError(f"{path}: {inner} names a pickled object, which may run code; it was not opened")
            if inner.endswith(".pt"):
                _check_tensors(archive.read(name), where=f"{path}: {inner}")


def _names_pickle(record: Any) -> bool:
    if isinstance(record, dict):
        return record.get("use_pickle") is True or any(_names_pickle(value) for value in record.values())
    return isinstance(record, list) and any(_names_pickle(value) for value in record)


def _check_tensors(data: bytes, *, where: str) -> None:
    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except pickle.UnpicklingError as error:
        raise DataError(f"{where} holds more than tensors, which may run code; it was not opened") from error
