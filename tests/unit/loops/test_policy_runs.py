"""Runs of jobs with policies: the same bits for any windows, roles and tiers, and across snapshots."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hetero.records import HOST_DEVICE, AdmissionSpec, Clock, EvictionSpec, JobSpec, RoleSpec, SnapshotSpec
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.runs import Finished, finish
from tests.support.thread_towers import train_towers
from tests.support.tiered_jobs import job_of, tiered
from tests.unit.loops.test_resume import assert_equal, train_on

ADMISSION = AdmissionSpec(after=3, forget_days=2)
EVICTION = EvictionSpec(expire_days=2, min_score=0.3)


def with_policies(job: JobSpec, *, day_steps: int = 7) -> JobSpec:
    groups = tuple(replace(group, admission=ADMISSION, eviction=EVICTION) for group in job.groups)
    return replace(job, groups=groups, clock=Clock(day_steps=day_steps))


def with_room(job: JobSpec) -> JobSpec:
    """With memory for keys without rows too."""
    assert job.storage is not None
    return replace(job, storage=replace(job.storage, memory_bytes=job.storage.memory_bytes + 300_000))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    folder: Path = tmp_path_factory.mktemp("data")
    files = [write_data(folder / f"{n}.parquet", rows=400 + n, seed=n) for n in range(2)]
    return with_policies(small_job(data_spec(*files, shuffle=True), batch_size=32))


@pytest.fixture(scope="module")
def pulled(job: JobSpec) -> Finished:
    return finish(job, in_process=True, score=True)


@pytest.mark.parametrize(("window", "servers", "readers"), [(1, 1, 2), (4, 3, 1), (1000, 2, 3)])
def test_bits_do_not_depend_on_windows_servers_and_readers(
    job: JobSpec, pulled: Finished, window: int, servers: int, readers: int
) -> None:
    changed = replace(job, window=window, servers=RoleSpec(count=servers), readers=RoleSpec(count=readers))
    leased = finish(changed, in_process=True, score=True)
    np.testing.assert_array_equal(leased.outcome.losses, pulled.outcome.losses)
    assert leased.scores is not None
    assert pulled.scores is not None
    np.testing.assert_array_equal(leased.scores.predictions, pulled.scores.predictions)
    assert leased.report.rows == pulled.report.rows
    assert leased.report.drops == pulled.report.drops
    assert {reason for _, _, reason in pulled.report.drops} == {"forgotten", "expired", "low_score"}


def test_without_policies_there_are_more_rows(job: JobSpec, pulled: Finished) -> None:
    plain = replace(job, groups=tuple(replace(group, admission=None, eviction=None) for group in job.groups))
    assert sum(finish(plain, in_process=True).report.rows.values()) > 1.5 * sum(pulled.report.rows.values())


@pytest.mark.parametrize("device", [HOST_DEVICE, "cpu"])
def test_several_towers_over_windows_give_the_bits_of_pulling(job: JobSpec, device: str) -> None:
    two = replace(job, towers=RoleSpec(count=2))
    pulled, leased = train_towers(two), train_towers(replace(two, window=4, device=device))
    for rank in range(2):
        np.testing.assert_array_equal(leased.logs[rank].losses, pulled.logs[rank].losses)
    assert [server.state().drops for server in leased.servers] == [server.state().drops for server in pulled.servers]


@pytest.mark.parametrize(("window", "at"), [(0, 14), (4, 10), (4, 14)])
def test_a_run_goes_on_from_its_snapshot(job: JobSpec, tmp_path: Path, window: int, at: int) -> None:
    """In the middle of a day and of a window, and where a day begins."""
    whole = train_on(replace(job, window=window), tmp_path / "whole", resumed=False)
    cut = replace(job, window=window, max_steps=at, snapshots=SnapshotSpec(every_steps=at, every_s=None))
    train_on(cut, tmp_path / "parts", resumed=False)
    resumed = replace(job, window=window, servers=RoleSpec(count=2))
    assert_equal(train_on(resumed, tmp_path / "parts", resumed=True), whole)


def test_rows_on_ssd_follow_the_same_policies(tmp_path: Path) -> None:
    job = with_policies(job_of(tmp_path, window=4, max_steps=40), day_steps=11)
    admission, eviction = AdmissionSpec(probability=0.5), EvictionSpec(expire_days=1)
    job = replace(job, groups=tuple(replace(g, admission=admission, eviction=eviction) for g in job.groups))
    whole = finish(job, in_process=True)
    parts = finish(with_room(tiered(job, tmp_path)), in_process=True)
    np.testing.assert_array_equal(parts.outcome.losses, whole.outcome.losses)
    assert parts.report.rows == whole.report.rows
    assert parts.report.drops == whole.report.drops
    assert parts.report.tiers["ssd_hits"] > 0
    assert parts.report.tiers["memory_bytes"] <= parts.report.tiers["memory_budget_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("window", [0, 4])
def test_a_tiered_run_goes_on_too(tmp_path: Path, window: int) -> None:
    job = with_policies(job_of(tmp_path, window=window, max_steps=24), day_steps=7)
    whole = train_on(job, tmp_path / "whole", resumed=False)
    cut = replace(job, snapshots=SnapshotSpec(every_steps=10, every_s=None), max_steps=12)
    train_on(with_room(tiered(cut, tmp_path)), tmp_path / "parts", resumed=False)
    for goes_on in (job, with_room(tiered(job, tmp_path))):
        shutil.copytree(tmp_path / "parts", tmp_path / "again", dirs_exist_ok=True)
        assert_equal(train_on(goes_on, tmp_path / "again", resumed=True), whole)
        shutil.rmtree(tmp_path / "again")
