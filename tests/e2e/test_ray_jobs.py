"""`ray job submit`: a job that brings its code and trains, one that fails, one that is stopped."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.cli import hetero, write_job
from tests.support.jobs import write_data
from tests.support.ray_jobs import JobServer, job_server

LIMIT_S = 120.0
HETERO = (sys.executable, "-m", "pipelines")
TOWER = """
import pipelines
from hetero.towers.wide_and_deep import WideAndDeep


class Mine(WideAndDeep):
    def __init__(self, inputs, **arguments):
        super().__init__(inputs, **arguments)
        with open("{found}", "w") as file:
            file.write(pipelines.__file__)
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server() -> Iterator[JobServer]:
    with job_server(num_cpus=4) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What is submitted: a job and a tower of its own. Data lie beside it, where every node would reach them."""
    (tmp_path / "submitted").mkdir()
    paths = {name: str(write_data(tmp_path / f"{name}.parquet", rows=600, seed=1)) for name in ("train", "test")}
    write_job(
        tmp_path / "submitted" / "job.yaml",
        data={**paths, "weight": "weight"},
        tower={"name": "mytower:Mine", "args": {"hidden": [8]}},
        run={"folder": str(tmp_path / "run")},
    )
    tower = TOWER.format(found=tmp_path / "found.txt")
    (tmp_path / "submitted" / "mytower.py").write_text(tower, encoding="utf-8")
    return tmp_path / "submitted"


def test_a_job_brings_its_code_and_writes_to_the_shared_folder(server: JobServer, folder: Path) -> None:
    ran = server.submit(*HETERO, "train", "job.yaml", folder=folder, name="trains")
    assert ran.code == 0, ran.err
    assert "succeeded" in ran.err
    assert "rows trained" in ran.out
    run = folder.parent / "run"
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert summary["placement"] == f"Ray at {server.address}"
    assert "py_modules_files" in (folder.parent / "found.txt").read_text(encoding="utf-8")
    alone = hetero("train", "job.yaml", "--run", str(folder.parent / "alone"), "--in-process", "--json", cwd=folder)
    assert alone.code == 0, alone.err
    np.testing.assert_array_equal(np.load(run / "losses.npy"), np.load(folder.parent / "alone" / "losses.npy"))


def test_a_job_that_fails_says_why_at_the_end_and_has_its_exit_code(server: JobServer, folder: Path) -> None:
    ran = server.submit(*HETERO, "train", "job.yaml", "--run", "runs/here", folder=folder, name="fails")
    assert ran.code == 1
    logs = server.ray("job", "logs", "fails").out.rstrip().splitlines()
    assert logs[-1].startswith("error: run folder runs/here: lies in the copy of the job's working directory")
    told = server.get("/api/jobs/fails")
    assert (told["status"], told["driver_exit_code"]) == ("FAILED", 2)
    assert "lies in the copy" in told["message"]


def test_a_job_that_is_stopped_leaves_a_snapshot_to_go_on_from(server: JobServer, folder: Path) -> None:
    begin = server.submission(folder, {"RAY_JOB_STOP_WAIT_TIME_S": "90"}, "stops")
    begun = server.ray(*begin, "--no-wait", "--", *HETERO, "train", "job.yaml", "--set", "train.epochs=100000")
    assert begun.code == 0, begun.err
    events = folder.parent / "run" / "events.jsonl"
    _await_step(server, events)
    asked_t = time.monotonic()
    stopped = server.ray("job", "stop", "stops")
    assert stopped.code == 0, stopped.err
    assert time.monotonic() - asked_t < 60
    assert server.get("/api/jobs/stops")["status"] == "STOPPED"
    assert "go on with `hetero resume" in server.ray("job", "logs", "stops").out
    names = [json.loads(line)["name"] for line in events.read_text(encoding="utf-8").splitlines()]
    assert names[-1] == "run.stopped"
    assert names.count("snapshot.written") == 1
    actors = server.get("/api/v0/actors?detail=1&limit=1000")["data"]["result"]["result"]
    left = [one["name"] for one in actors if one["state"] != "DEAD" and one["name"].startswith("run/")]
    assert not left
    step = max(json.loads(line).get("step", 0) for line in events.read_text(encoding="utf-8").splitlines())
    more = ("--set", "train.epochs=100000", "--set", f"train.max_steps={step + 3}")
    resumed = hetero("resume", str(folder.parent / "run"), "--in-process", "--json", *more, cwd=folder)
    assert resumed.code == 0, resumed.err
    assert (resumed.json["snapshots"]["resumed_from"], resumed.json["steps"]) == (step, step + 3)


def _await_step(server: JobServer, events: Path) -> None:
    deadline_t = time.monotonic() + LIMIT_S
    while not (events.is_file() and '"kind": "step"' in events.read_text(encoding="utf-8")):
        if time.monotonic() > deadline_t:
            pytest.fail(f"no step was trained: {server.ray('job', 'logs', 'stops').err}")
        time.sleep(0.2)
