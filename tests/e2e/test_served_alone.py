"""An exported model in a process that can import neither Ray nor the training code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from hetero.checkpoint.export import export_model
from hetero.records import TowerSpec
from tests.support.served import train_and_score

_BLOCKED = [
    "ray",
    "pipelines",
    "actors",
    "hetero.towers",
    "hetero.embedding",
    "hetero.exchange",
    "hetero.loops",
    "hetero.checkpoint",
    "hetero.optim",
    "hetero.parallel",
    "hetero.planning",
    "hetero.metrics",
    "pydantic",
    "typer",
]
_PROGRAM = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if any(name == blocked or name.startswith(blocked + ".") for blocked in BLOCKED):
            raise ImportError(name + " must not be imported")
sys.meta_path.insert(0, Refused())
for blocked in ("ray", "pipelines", "hetero.towers"):
    try:
        __import__(blocked)
    except ImportError:
        continue
    sys.exit(blocked + " could be imported")
import numpy as np, pyarrow.parquet as pq
from hetero.serving.model import ServedModel
scored = ServedModel.open(sys.argv[1]).score(pq.read_table(sys.argv[2]))
np.save(sys.argv[3], scored.predictions)
"""


def test_the_loader_needs_neither_ray_nor_the_training_code(tmp_path: Path) -> None:
    tower = TowerSpec(name="din", args={"pairs": [["item", "history"]], "hidden": [16]}, lr=0.01)
    trained = train_and_score(tmp_path, tower=tower, rows=500)
    export_model(trained.module(), trained.job, trained.snapshot, folder=tmp_path / "exported")
    program = f"BLOCKED = {_BLOCKED!r}\n{_PROGRAM}"
    paths = [str(tmp_path / "exported"), str(trained.test), str(tmp_path / "scores.npy")]
    command = [sys.executable, "-c", program, *paths]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_allclose(np.load(tmp_path / "scores.npy"), trained.scores, rtol=0, atol=1e-6)
