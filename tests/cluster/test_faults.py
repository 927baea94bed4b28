"""A role that dies or stops ends the run within 30 s with an error that names it; nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import ray

from actors.context import RunContext
from actors.naming import Role
from actors.supervisor import RayRun
from hetero.errors import DataError, DeadlineError, PeerLostError, UserError
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass, RunProgress
from hetero.records import JobSpec, Mode, RoleSpec
from tests.support.jobs import data_spec, small_job, write_data

LIMIT_S = 30.0


class Fault:
    """Once training is under way, sends a signal to one role's process."""

    def __init__(self, run: RayRun, role: Role, number: int) -> None:
        self._run = run
        self._role = role
        self._signal = number
        self.at_t: float | None = None
        self.pid = run.pid_of(role, 0)

    def __call__(self, progress: RunProgress) -> None:
        if self.at_t is None and progress.step >= 3:
            self.at_t = time.monotonic()
            os.kill(self.pid, self._signal)


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    """Far more steps than the test lasts."""
    files = [write_data(tmp_path / f"{n}.parquet", rows=2000, seed=n) for n in range(2)]
    return small_job(data_spec(*files), epochs=10_000, window=4, servers=RoleSpec(count=2), deadline_s=10.0)


def run_into(job: JobSpec, *, name: str, role: Role, number: int) -> tuple[Exception, float]:
    """Train until the fault ends it: the error, and seconds from the fault to it."""
    data = DataPass.open(job.train, phase=Phase.TRAIN, epochs=job.epochs)
    run = RayRun(RunContext(run=name, job=job))
    fault = Fault(run, role, number)
    try:
        with pytest.raises(PeerLostError) as caught:
            run.train(data, watch=fault)
        assert fault.at_t is not None
        return caught.value, time.monotonic() - fault.at_t
    finally:
        run.close()
        if number == signal.SIGSTOP:
            with contextlib.suppress(ProcessLookupError):  # closing ends it, where all is well
                os.kill(fault.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "role",
    [Role.TOWER, *(pytest.param(role, marks=pytest.mark.slow) for role in Role if role is not Role.TOWER)],
)
def test_a_killed_role_is_named(job: JobSpec, role: Role) -> None:
    error, seconds = run_into(job, name=f"killed-{role.value}", role=role, number=signal.SIGKILL)
    assert f"killed-{role.value}/{role.value}/0 died" in str(error)
    assert seconds < LIMIT_S


@pytest.mark.slow
@pytest.mark.parametrize("mode", [Mode.SYNC, Mode.ASYNC])
def test_a_killed_tower_of_two_is_named(job: JobSpec, mode: Mode) -> None:
    two = replace(job, towers=RoleSpec(count=2), mode=mode, window=job.window if mode is Mode.SYNC else 0)
    name = f"killed-of-two-{mode.value}"
    error, seconds = run_into(two, name=name, role=Role.TOWER, number=signal.SIGKILL)
    assert f"{name}/tower/0 died" in str(error)
    assert seconds < LIMIT_S


@pytest.mark.slow
@pytest.mark.parametrize("role", [Role.READER, Role.SERVER])
def test_a_stopped_role_is_named(job: JobSpec, role: Role) -> None:
    error, seconds = run_into(job, name=f"stopped-{role.value}", role=role, number=signal.SIGSTOP)
    assert isinstance(error, DeadlineError)
    assert f"stopped-{role.value}/{role.value}/0" in str(error)
    assert seconds < LIMIT_S


def test_one_run_of_a_name_and_nothing_left_behind_when_the_driver_raises(job: JobSpec) -> None:
    def give_up(progress: RunProgress) -> None:
        if progress.step:
            raise DataError("enough")

    data = DataPass.open(job.train, phase=Phase.TRAIN, epochs=job.epochs)
    run = RayRun(RunContext(run="given-up", job=job))
    try:
        with pytest.raises(UserError, match="a run named `given-up` is alive"):
            RayRun(RunContext(run="given-up", job=job))
        with pytest.raises(DataError, match="enough"):
            run.train(data, watch=give_up)
    finally:
        run.close()
    deadline_t = time.monotonic() + LIMIT_S
    while alive := [name for name in ray.util.list_named_actors() if name.startswith("given-up/")]:
        assert time.monotonic() < deadline_t, f"still alive: {alive}"
    assert ray.is_initialized()
