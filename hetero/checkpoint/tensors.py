"""Tensors of a snapshot by name, as safetensors: loading them runs no code."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from hetero.checkpoint.manifest import FileEntry, FileKind
from hetero.checkpoint.snapshot import Snapshot
from hetero.checkpoint.storage import Storage
from hetero.errors import DataError

DENSE = "dense"
"""Name of the tower's parameters and buffers."""

OPTIMIZER = "optimizer"
"""Name of the dense optimizer's state."""


def write_tensors(tensors: Mapping[str, torch.Tensor], *, folder: str, name: str) -> FileEntry:
    """Write `<name>.safetensors`: tensors of any shape and dtype. Raises SnapshotError when the disk refuses."""
    data = save({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()})
    file = f"{name}.safetensors"
    written = Storage(folder).write(file, data)
    return FileEntry(file=file, kind=FileKind.TENSORS, bytes=written.bytes, xxh64=written.xxh64)


def read_tensors(snapshot: Snapshot, *, name: str) -> dict[str, torch.Tensor]:
    """The tensors of `<name>.safetensors`, on the CPU. Raises DataError when it is missing, damaged or none."""
    file = f"{name}.safetensors"
    data = snapshot.read(snapshot.manifest.entry(file))
    try:
        return load(data.to_pybytes())
    except (SafetensorError, ValueError, KeyError) as error:
        raise DataError(f"{snapshot.file(file)}: holds no tensors ({error})") from error


def write_module(module: nn.Module, *, folder: str) -> FileEntry:
    """Write parameters and buffers of a tower as `dense`. Raises SnapshotError when the disk refuses."""
    return write_tensors(module.state_dict(), folder=folder, name=DENSE)


def read_module(module: nn.Module, snapshot: Snapshot) -> None:
    """Load `dense` into a tower built from the same job. Raises DataError when it does not fit."""
    tensors = read_tensors(snapshot, name=DENSE)
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        raise DataError(f"{snapshot.path}: does not fit the tower of this job: {error}") from error
