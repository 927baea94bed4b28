"""A tower of the user's own, named in the job by its import path, is found in every actor."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import hetero_here, write_job
from tests.support.jobs import write_data


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write_data(tmp_path / "train.parquet", rows=4000, seed=1)
    write_data(tmp_path / "test.parquet", rows=1500, seed=2)
    write_job(tmp_path / "job.yaml")
    return tmp_path


TOWER = """
import torch
from torch import nn

class MyTower(nn.Module):
    def __init__(self, inputs, hidden=8):
        super().__init__()
        self.names = [lookup.name for lookup in inputs.deep if not lookup.is_sequence]
        width = sum(lookup.dim for lookup in inputs.deep if not lookup.is_sequence) + inputs.dense
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, {outputs}))

    def forward(self, dense, embeddings):
        return self.mlp(torch.cat([dense, embeddings.concat(self.names)], 1))
"""


@pytest.mark.slow
def test_it_trains_in_actors(folder: Path) -> None:
    (folder / "mytower.py").write_text(TOWER.format(outputs=1), encoding="utf-8")
    own = '{name: "mytower:MyTower", args: {hidden: 12}}'
    ran = hetero_here("train", "job.yaml", "--set", f"tower={own}", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["placement"] != "this process"
    assert ran.json["auc"] > 0.55


def test_the_wrong_shape_is_the_users_mistake(folder: Path) -> None:
    (folder / "wrongtower.py").write_text(TOWER.format(outputs=3), encoding="utf-8")
    ran = hetero_here("train", "job.yaml", "--in-process", "--set", "tower=wrongtower:MyTower", "--json")
    assert ran.code == 2, ran.err
    assert "[256, 3]" in ran.json["error"]["message"]
