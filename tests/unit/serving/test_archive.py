"""The tower's archive is opened only when opening it runs no code."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hetero.errors import DataError
from hetero.serving.archive import load_tower


class Doubled(nn.Module):
    """A tower of one weight and one buffer."""

    zero: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0]))
        self.register_buffer("zero", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.zero


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "tower.pt2"
    torch.export.save(torch.export.export(Doubled(), (torch.ones(3),), strict=False), path)
    return path


class RunsCode:
    """What unpickling would call."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def changed(good: Path, tmp_path: Path, *, change: dict[str, bytes], added: dict[str, bytes] | None = None) -> Path:
    """A copy of the archive with other bytes in files whose names end as `change` says, and files added."""
    path = tmp_path / "tower.pt2"
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(path, "w") as target:
        names = source.namelist()
        for name in names:
            ending = next((ending for ending in change if name.endswith(ending)), None)
            target.writestr(name, source.read(name) if ending is None else change[ending])
        for name, data in (added or {}).items():
            target.writestr(f"{names[0].split('/')[0]}/{name}", data)
    return path


def test_what_export_writes_loads(good: Path) -> None:
    torch.testing.assert_close(load_tower(good)(torch.ones(3)), torch.full((3,), 2.0))


def test_example_inputs_that_would_run_code_are_not_opened(good: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    pickled = io.BytesIO()
    torch.save(RunsCode(mark), pickled)
    path = changed(good, tmp_path, change={"sample_inputs/model.pt": pickled.getvalue()})
    with pytest.raises(DataError, match=r"sample_inputs/model\.pt holds more than tensors, which may run code"):
        load_tower(path)
    assert not mark.exists()


def test_weights_said_to_be_pickled_are_not_opened(good: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(good) as archive:
        name = next(name for name in archive.namelist() if name.endswith("weights_config.json"))
        config = json.loads(archive.read(name))
    for entry in config["config"].values():
        entry["use_pickle"] = True
    path = changed(good, tmp_path, change={"weights_config.json": json.dumps(config).encode()})
    with pytest.raises(DataError, match="names a pickled object, which may run code"):
        load_tower(path)


@pytest.mark.parametrize("name", ["data/aotinductor/model/a.so", "data/constants/custom_obj_0", "../outside"])
def test_files_that_are_no_part_of_a_tower_are_not_opened(good: Path, tmp_path: Path, name: str) -> None:
    path = changed(good, tmp_path, change={}, added={name: b"anything"})
    with pytest.raises(DataError, match="which is no part of an exported tower"):
        load_tower(path)


def test_a_damaged_archive_is_named(good: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.pt2"
    path.write_bytes(good.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"cut\.pt2: holds"):
        load_tower(path)
