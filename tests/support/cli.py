"""Runs the command line in a process of its own, with a deadline, and reads what it printed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipelines.cli import main


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self.out)
        return record


def hetero_here(*words: str) -> Ran:
    """`hetero WORDS` in this process and the current directory: quicker, for commands that do not start Ray."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words))
    return Ran(code=code, out=out.getvalue(), err=err.getvalue())


def hetero(*words: str, cwd: Path, deadline_s: float = 150.0) -> Ran:
    """`hetero WORDS` in folder `cwd`."""
    command = [sys.executable, "-c", "import sys; from pipelines.cli import main; sys.exit(main())", *words]
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "COLUMNS": "120", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=deadline_s, env=environment, check=False
    )
    return Ran(code=ended.returncode, out=ended.stdout, err=ended.stderr)


def write_job(path: Path, **sections: Any) -> Path:
    """A job file over `tests.support.jobs.write_data`'s columns; sections replace or add."""
    job: dict[str, Any] = {
        "name": "small",
        "seed": 1,
        "data": {"train": "train.parquet", "test": "test.parquet", "weight": "weight", "gauc": "user"},
        "features": {
            "sparse": [
                {"name": "user"},
                {"name": "item"},
                {"name": "tags", "list": True, "pooling": "mean", "tables": ["deep"]},
                {"name": "history", "keys_as": "item", "list": True, "pooling": "none", "tables": ["deep"]},
            ],
            "dense": [{"name": "x", "transform": "standard"}, {"name": "y", "transform": "log"}],
        },
        "tables": [
            {"name": "wide", "dim": 1, "optimizer": {"name": "ftrl"}},
            {"name": "deep", "dim": 4},
        ],
        "tower": {"name": "wide_and_deep", "args": {"hidden": [16, 8]}},
        "train": {"batch_size": 256, "epochs": 2},
        "roles": {"readers": 1, "servers": 2, "towers": 1},
    }
    path.write_text(yaml.safe_dump({**job, **sections}, sort_keys=False), encoding="utf-8")
    return path
