"""Ctrl-C and SIGTERM, as a terminal and `ray job stop` send them: a snapshot, a clean end; `hetero resume` goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.support.cli import hetero, write_job
from tests.support.jobs import write_data

LIMIT_S = 120.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job of more steps than anyone waits for; `resume` is given fewer."""
    write_data(tmp_path / "train.parquet", rows=2000, seed=1)
    write_data(tmp_path / "test.parquet", rows=200, seed=2)
    write_job(tmp_path / "job.yaml", train={"batch_size": 64, "epochs": 10_000})
    return tmp_path


def begin(folder: Path, *words: str) -> subprocess.Popen[str]:
    """`hetero train` in a process group of its own, training."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", "import sys; from pipelines.cli import main; sys.exit(main())"]
    process = subprocess.Popen(
        [*command, "train", "job.yaml", "--run", "run", "--json", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline_t = time.monotonic() + LIMIT_S
    events = folder / "run" / "events.jsonl"
    while not (events.is_file() and '"kind": "step"' in events.read_text(encoding="utf-8")):
        if process.poll() is not None or time.monotonic() > deadline_t:
            process.kill()
            pytest.fail(f"no step was trained: {process.communicate()}")
        time.sleep(0.1)
    return process


def end(process: subprocess.Popen[str]) -> str:
    """Its message. Nothing of its process group is left."""
    out, err = process.communicate(timeout=LIMIT_S)
    left = [other for other in psutil.process_iter(["pid"]) if _group_of(other.pid) == process.pid]
    _, alive = psutil.wait_procs(left, timeout=20)
    assert not alive, [other.cmdline() for other in alive]
    message: str = json.loads(out)["error"]["message"]
    assert json.loads(out)["error"]["kind"] == "StoppedError", err
    return message


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def check_it_goes_on(folder: Path, message: str) -> None:
    assert "go on with `hetero resume" in message
    step = int(message.split("stopped after step ")[1].split(",")[0])
    more = ("--set", "train.epochs=10000", "--set", f"train.max_steps={step + 20}")
    resumed = hetero("resume", "run", "--in-process", "--json", *more, cwd=folder)
    assert resumed.code == 0, resumed.err
    assert resumed.json["snapshots"]["resumed_from"] == step
    whole = hetero("train", "job.yaml", "--run", "whole", "--in-process", "--json", *more, cwd=folder)
    losses = [np.load(folder / name / "losses.npy") for name in ("run", "whole")]
    np.testing.assert_array_equal(*losses)
    assert resumed.json["auc"] == whole.json["auc"]


@pytest.mark.slow
def test_control_c_takes_a_snapshot_and_ends(folder: Path) -> None:
    process = begin(folder, "--in-process")
    os.killpg(process.pid, signal.SIGINT)
    message = end(process)
    assert process.returncode == 130
    check_it_goes_on(folder, message)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_on_ray_too(folder: Path, number: signal.Signals) -> None:
    """Ctrl-C reaches the whole process group, SIGTERM the driver alone."""
    process = begin(folder)
    os.killpg(process.pid, number) if number is signal.SIGINT else process.send_signal(number)
    message = end(process)
    assert process.returncode == 128 + number
    check_it_goes_on(folder, message)


@pytest.mark.slow
def test_twice_ends_at_once(folder: Path) -> None:
    process = begin(folder, "--in-process")
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
