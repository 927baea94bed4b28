"""A server with rows on SSD is killed at a random moment: nothing that a snapshot holds is lost, no bit changes."""

from __future__ import annotations

import os
import random
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import ray

from actors.naming import NAMESPACE
from hetero.checkpoint.snapshot import list_snapshots
from hetero.observe.events import read_events
from pipelines.job import Job, load_job
from pipelines.progress import ProgressRecord, Silent
from tests.support.cli import write_job
from tests.support.tiered_jobs import MEMORY, job_of

STEPS, SNAPSHOT_EVERY = 400, 20
LATEST_S = 3.0


@dataclass
class KillsLater(Silent):
    """Kills one of two servers with SIGKILL, so many seconds after the first snapshot was there. killed: once it is."""

    run: Path
    after_s: float
    server: int
    killed: int | None = None
    timer: threading.Timer | None = None

    def update(self, record: ProgressRecord) -> None:
        if self.timer is None and list_snapshots(self.run / "snapshots"):
            handle: Any = ray.get_actor(f"{self.run.name}/server/{self.server}", namespace=NAMESPACE)
            pid = int(cast(Any, ray).get(handle.ping.remote(), timeout=20))
            self.timer = threading.Timer(self.after_s, self._kill, [pid])
            self.timer.start()

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.killed = pid


def job_in(folder: Path) -> Job:
    write_job(
        folder / "job.yaml",
        data={"train": str(folder / "data.parquet")},
        tower={"name": "tests.support.paced_tower:PacedTower", "args": {"hidden": [16, 8]}},
        train={"batch_size": 256, "epochs": 100, "max_steps": STEPS, "window": 4, "precision": "fp32"},
        snapshots={"every_steps": SNAPSHOT_EVERY, "every_s": None},
        run={"deadline_s": 8.0},
        roles={"readers": 1, "servers": 2, "towers": 1},
    )
    return load_job(folder / "job.yaml")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_server_killed_at_any_moment_loses_nothing_of_a_snapshot(tmp_path: Path, seed: int) -> None:
    job_of(tmp_path)  # its data: most rows have a user and an item of their own
    job = job_in(tmp_path)
    storage = {"memory_bytes": MEMORY, "directories": [str(tmp_path / "ssd")], "ssd_bytes": 1 << 28, "io": "cached"}
    on_ssd = Job(**{**job.model_dump(mode="json", by_alias=True), "storage": storage})
    drawn = random.Random(seed)
    kills = KillsLater(tmp_path / "run", drawn.uniform(0, LATEST_S), drawn.randrange(2))
    run = on_ssd.fit(run_folder=tmp_path / "run", progress=kills)
    assert kills.timer is not None
    kills.timer.cancel()
    assert kills.killed is not None
    (recovery,) = run.recoveries
    assert recovery["role"] == f"server/{kills.server}"
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert recovery["back_to"] in [event.fields["step"] for event in events if event.name == "snapshot.written"]
    assert run.tiers["ssd_rows"] > 0
    whole = job.fit(run_folder=tmp_path / "alone", in_process=True)
    np.testing.assert_array_equal(np.load(tmp_path / "run" / "losses.npy"), np.load(tmp_path / "alone" / "losses.npy"))
    assert run.rows == whole.rows
