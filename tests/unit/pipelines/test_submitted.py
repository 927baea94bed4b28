"""What a run heeds inside a job of `ray job submit`."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.context import connected_with
from hetero.errors import UserError
from pipelines.job import load_job
from pipelines.options import refuse_two_places
from pipelines.submitted import RAY_ADDRESS, STOP_WAIT, check_lasting, tell_of_short_stops
from tests.support.cli import write_job

COPY = Path("/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_1")
IN_JOB = {"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}


@pytest.mark.parametrize("folder", ["runs/a", str(COPY / "runs" / "a")])
def test_runs_do_not_lie_in_the_copy_of_a_working_directory(folder: str) -> None:
    with pytest.raises(UserError, match="--run /shared/runs/NAME"):
        check_lasting(Path(folder), here=COPY)


def test_runs_may_lie_elsewhere() -> None:
    check_lasting(Path("/shared/runs/a"), here=COPY)
    check_lasting(Path("runs/a"), here=Path("/home/someone"))


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        (IN_JOB, True),
        ({**IN_JOB, STOP_WAIT: "5"}, True),
        ({**IN_JOB, STOP_WAIT: "90"}, False),
        ({}, False),
    ],
)
def test_short_stops_are_told_in_jobs(
    environment: dict[str, str], told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tell_of_short_stops(60.0, environment=environment)
    assert bool(caplog.records) is told
    assert ('{"RAY_JOB_STOP_WAIT_TIME_S": "90"}' in caplog.text) is told


def test_an_address_in_the_environment_does_not_forbid_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RAY_ADDRESS, "10.0.0.1:6379")
    refuse_two_places(in_process=True, address="10.0.0.1:6379")
    with pytest.raises(UserError, match="exclude each other"):
        refuse_two_places(in_process=True, address="10.0.0.2:6379")


def test_a_dashboard_is_no_cluster() -> None:
    """Others take its address from the same variable."""
    with pytest.raises(UserError, match="is that of the dashboard"), connected_with(1, address="http://127.0.0.1:8265"):
        pass


def test_a_script_that_was_submitted_trains_on_its_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr("pipelines.train.fit", lambda job, **known: told.append(known["address"]))
    for name in ("train", "test"):
        (tmp_path / f"{name}.parquet").touch()
    job = load_job(write_job(tmp_path / "job.yaml"))
    job.fit()
    monkeypatch.setenv(RAY_ADDRESS, "10.0.0.1:6379")
    job.fit()
    job.fit(address="10.0.0.2:6379")
    job.fit(in_process=True)
    assert told == [None, "10.0.0.1:6379", "10.0.0.2:6379", None]
