"""A run that loses a role goes on by itself, and ends as the run that nothing happened to."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import ray

from actors.naming import NAMESPACE
from hetero.checkpoint.snapshot import list_snapshots
from hetero.errors import PeerLostError
from hetero.observe.events import read_events
from hetero.observe.summary import Summary
from pipelines.job import Job, load_job
from pipelines.progress import ProgressRecord, Silent
from pipelines.resume import resume_run
from tests.support.cli import write_job
from tests.support.jobs import write_data

STEPS = 120


class Hits(Silent):
    """Sends a signal to a role's process, once a snapshot is there or the test data are scored; `times` in all."""

    def __init__(self, run: Path, role: str, *, number: int = signal.SIGKILL, scoring: bool = False, times: int = 1):
        self._run = run
        self._role = role
        self._number = number
        self._scoring = scoring
        self._times = times
        self._next_step = 0
        self.pids: list[int] = []

    def phase(self, text: str) -> None:
        if self._scoring and text.startswith("scoring") and not self.pids:
            threading.Timer(0.05, self._hit).start()

    def update(self, record: ProgressRecord) -> None:
        ready = not self._scoring and len(self.pids) < self._times and record.step > self._next_step
        if ready and list_snapshots(self._run / "snapshots"):
            self._next_step = record.step
            self._hit()

    def _hit(self) -> None:
        handle: Any = ray.get_actor(f"{self._run.name}/{self._role}", namespace=NAMESPACE)
        self.pids.append(int(cast(Any, ray).get(handle.ping.remote(), timeout=20)))
        os.kill(self.pids[-1], self._number)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_data(tmp_path / "train.parquet", rows=4000, seed=1)
    write_data(tmp_path / "test.parquet", rows=500, seed=2)
    return tmp_path


def job_in(folder: Path, *overrides: str, roles: Mapping[str, int] | None = None) -> Job:
    write_job(
        folder / "job.yaml",
        data={"train": str(folder / "train.parquet"), "test": str(folder / "test.parquet")},
        train={"batch_size": 64, "epochs": 100, "max_steps": STEPS, "window": 4, "precision": "fp32"},
        tower={"name": "tests.support.paced_tower:PacedTower", "args": {"hidden": [8]}},
        snapshots={"every_steps": 30},
        run={"deadline_s": 8.0},
        roles={"readers": 2, "servers": 2, "towers": 1, **(roles or {})},
    )
    return load_job(folder / "job.yaml", overrides=overrides)


def check_nothing_shows(folder: Path, run: Summary, *, exact: bool = True, actions: tuple[str, ...]) -> None:
    """The run's losses and scores are those of one that nothing happened to; what happened is told."""
    alone = job_in(folder).fit(run_folder=folder / "alone", in_process=True)
    losses = np.load(folder / run.run_folder / "losses.npy")
    whole = np.load(folder / "alone" / "losses.npy")
    assert len(np.load(folder / run.run_folder / "step_ends.npy")) == len(losses) == STEPS
    assert run.samples == alone.samples
    if exact:
        np.testing.assert_array_equal(losses, whole)
        assert (run.auc, run.rows) == (alone.auc, alone.rows)
    else:
        np.testing.assert_allclose(losses, whole, rtol=1e-4)
    assert tuple(str(recovery["action"]) for recovery in run.recoveries) == actions
    told = [e for e in read_events(Path(run.run_folder) / "events.jsonl") if e.name == "run.recovered"]
    causes = [event.fields["cause"] for event in told]
    assert causes[len(causes) - len(run.recoveries) :] == [recovery["cause"] for recovery in run.recoveries]
    assert all(float(str(recovery["lost_s"])) > 0 for recovery in run.recoveries)


def test_without_a_server_it_goes_back_to_the_snapshot_and_ends_with_the_same_bits(folder: Path) -> None:
    hits = Hits(folder / "run", "server/1")
    run = job_in(folder).fit(run_folder=folder / "run", progress=hits)
    assert hits.pids
    (recovery,) = run.recoveries
    assert recovery["role"] == "server/1"
    assert "back to the snapshot of step" in str(recovery["reason"])
    assert int(str(recovery["back_to"])) >= 30
    check_nothing_shows(folder, run, actions=("go back",))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_reader_is_replaced_and_the_others_stay(folder: Path, number: int) -> None:
    hits = Hits(folder / "run", "reader/0", number=number)
    run = job_in(folder).fit(run_folder=folder / "run", progress=hits)
    assert not Path(f"/proc/{hits.pids[0]}").exists()
    assert [recovery["steps_repeated"] for recovery in run.recoveries] == [0]
    check_nothing_shows(folder, run, actions=("replace the reader",))
    assert run.snapshots["resumed_from"] is None


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("role", ["tower/0", "sequencer/0", "server/0"])
def test_a_stopped_role_counts_as_lost_and_is_ended(folder: Path, role: str) -> None:
    hits = Hits(folder / "run", role, number=signal.SIGSTOP)
    run = job_in(folder).fit(run_folder=folder / "run", progress=hits)
    assert not Path(f"/proc/{hits.pids[0]}").exists()
    check_nothing_shows(folder, run, actions=("go back",))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("role", ["tower/0", "tower/1", "reader/1", "server/0"])
def test_two_towers_meet_anew(folder: Path, role: str) -> None:
    hits = Hits(folder / "run", role)
    run = job_in(folder, roles={"towers": 2}).fit(run_folder=folder / "run", progress=hits)
    action = "replace the reader" if role.startswith("reader") else "go back"
    check_nothing_shows(folder, run, exact=False, actions=(action,))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["bounded", "async", "geo"])
@pytest.mark.parametrize("role", ["reader/0", "server/0"])
def test_every_row_is_trained_once_in_other_modes(folder: Path, mode: str, role: str) -> None:
    tables = [{"name": "wide", "dim": 1, "optimizer": {"name": "adagrad"}}, {"name": "deep", "dim": 4}]
    job_in(folder)
    write_job(
        folder / "job.yaml",
        **{
            **job_in(folder, roles={"towers": 2}).model_dump(mode="json", by_alias=True, include={"data", "snapshots"}),
            "tables": tables,
            "train": {"batch_size": 64, "epochs": 4, "mode": mode},
            "run": {"deadline_s": 8.0},
            "roles": {"readers": 2, "servers": 2, "towers": 2},
        },
    )
    hits = Hits(folder / "run", role)
    run = load_job(folder / "job.yaml").fit(run_folder=folder / "run", progress=hits)
    assert len(run.recoveries) == 1
    assert run.samples == 4 * 4000
    assert len(np.load(folder / "run" / "losses.npy")) == run.steps


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("role", ["reader/0", "server/0", "tower/0"])
def test_a_role_that_is_lost_while_the_test_data_are_scored(folder: Path, role: str) -> None:
    write_data(folder / "test.parquet", rows=30_000, seed=2)
    hits = Hits(folder / "run", role, scoring=True)
    run = job_in(folder).fit(run_folder=folder / "run", progress=hits)
    (recovery,) = run.recoveries
    assert recovery["phase"] == "test"
    check_nothing_shows(folder, run, actions=(str(recovery["action"]),))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rows_on_ssd_come_back_too(folder: Path) -> None:
    storage = {"memory_bytes": 4 << 20, "directories": [str(folder / "ssd")], "ssd_bytes": 1 << 27, "io": "cached"}
    hits = Hits(folder / "run", "server/1", number=signal.SIGSTOP)
    job = Job(**{**job_in(folder).model_dump(mode="json", by_alias=True), "storage": storage})
    run = job.fit(run_folder=folder / "run", progress=hits)
    check_nothing_shows(folder, run, actions=("go back",))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_fails_after_as_many_recoveries_as_are_allowed_and_resumes_from_there(folder: Path) -> None:
    hits = Hits(folder / "run", "server/0", times=2)
    with pytest.raises(PeerLostError, match=r"server/0 died.*recovered 1 times \(run.recoveries: 1\).*before that"):
        job_in(folder, "run.recoveries=1").fit(run_folder=folder / "run", progress=hits)
    run = resume_run(folder / "run", in_process=True, progress=Silent())
    assert run.recoveries == ()
    check_nothing_shows(folder, run, actions=())
