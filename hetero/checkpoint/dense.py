"""Dense parameters of a tower on disk, as safetensors: loading them runs no code."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import nn

from hetero.checkpoint.manifest import DENSE, check_file, file_sha256, read_manifest
from hetero.errors import DataError


def write_dense(module: nn.Module, *, folder: Path) -> str:
    """Write parameters and buffers of a tower; returns the file's SHA-256."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / DENSE
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}, path)
    return file_sha256(path)


def read_dense(module: nn.Module, *, folder: Path) -> None:
    """Load parameters and buffers into a tower built from the same job. Raises DataError when they do not fit it."""
    path = folder / DENSE
    check_file(path, sha256=read_manifest(folder).dense_sha256)
    try:
        module.load_state_dict(load_file(path))
    except RuntimeError as error:
        raise DataError(f"{path}: does not fit the tower of this job: {error}") from error
