"""A node comes while a run trains: it goes on with more actors, and its result is that of a run that stayed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.cluster_utils import Cluster

from tests.support.cli import hetero, write_job
from tests.support.jobs import write_data

LIMIT_S = 90.0
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_data(tmp_path / "train.parquet", rows=2000, seed=1)
    write_data(tmp_path / "test.parquet", rows=200, seed=2)
    elastic = {"readers": [1, 2], "servers": [1, 3], "settle_s": 2.0}
    write_job(
        tmp_path / "job.yaml",
        train={"batch_size": 64, "epochs": 100_000, "precision": "fp32"},
        roles={"readers": 1, "servers": 1, "towers": 1, "elastic": elastic},
    )
    return tmp_path


def events(folder: Path) -> list[dict[str, Any]]:
    path = folder / "run" / "events.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def named(folder: Path, name: str) -> list[dict[str, Any]]:
    return [event for event in events(folder) if event["name"] == name]


def await_that(holds: Callable[[], bool], *, process: subprocess.Popen[str], what: str) -> None:
    deadline_t = time.monotonic() + LIMIT_S
    while not holds():
        if process.poll() is not None or time.monotonic() > deadline_t:
            process.kill()
            pytest.fail(f"{what}: {process.communicate()}")
        time.sleep(0.2)


@contextmanager
def training(folder: Path, address: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "pipelines", "train", "job.yaml", "--run", "run", "--address", address, "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=20)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_follows_a_node_that_comes_and_keeps_its_bits(folder: Path) -> None:
    node = {"object_store_memory": 100_000_000, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, head_node_args={**node, "num_cpus": 3})
    try:
        with training(folder, cluster.address) as process:
            await_that(lambda: bool(named(folder, "roles.replanned")), process=process, what="a first decision")
            cluster.add_node(num_cpus=2, object_store_memory=100_000_000)
            await_that(lambda: len(named(folder, "roles.replanned")) > 1, process=process, what="a second decision")
            _await_more_steps(folder, process)
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=LIMIT_S)
    finally:
        cluster.shutdown()
    first, second, *_ = named(folder, "roles.replanned")
    assert (first["done"], second["done"]) == ("kept", "by a snapshot")
    assert second["before"] == {"readers": 1, "servers": 1, "towers": 1}
    assert second["after"] == {"readers": 2, "servers": 3, "towers": 1}
    assert "(3 CPUs, 2 CPUs) hold 2 readers, 3 servers, 1 tower, within the bounds" in second["reason"]
    _check_bits(folder)


def _await_more_steps(folder: Path, process: subprocess.Popen[str]) -> None:
    """The run trains again, with more actors."""
    cut = named(folder, "roles.replanned")[-1]["step"]
    await_that(
        lambda: any(event["kind"] == "step" and event["step"] > cut + 100 for event in events(folder)),
        process=process,
        what="steps after the change",
    )


def _check_bits(folder: Path) -> None:
    step = named(folder, "snapshot.written")[-1]["step"]
    more = ("--set", f"train.max_steps={step + 10}")
    resumed = hetero("resume", "run", "--in-process", "--json", *more, cwd=folder)
    assert resumed.code == 0, resumed.err
    whole = hetero("train", "job.yaml", "--run", "whole", "--in-process", "--json", *more, cwd=folder)
    assert whole.code == 0, whole.err
    losses = [np.load(folder / name / "losses.npy") for name in ("run", "whole")]
    np.testing.assert_array_equal(*losses)
