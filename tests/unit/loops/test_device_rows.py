"""The device tier on the CPU: rows as tensors, torch operations, and the bits of host memory with its kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hetero.errors import CapacityError, JobError
from hetero.hardware.tower_device import check_room
from hetero.records import (
    AUTO_WINDOW,
    HOST_DEVICE,
    JobSpec,
    RoleSpec,
    RowOptimizer,
    RowOptimizerSpec,
    SnapshotSpec,
)
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.runs import Finished, finish
from tests.support.thread_towers import train_towers
from tests.unit.loops.test_resume import assert_equal, train_on
from tests.unit.loops.test_two_towers import Poisoned


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    folder: Path = tmp_path_factory.mktemp("data")
    files = [write_data(folder / f"{n}.parquet", rows=700 + n, seed=n) for n in range(2)]
    return small_job(data_spec(*files, shuffle=True), servers=RoleSpec(count=2), window=4)


def assert_same_bits(one: Finished, other: Finished) -> None:
    assert one.scores is not None
    assert other.scores is not None
    np.testing.assert_array_equal(one.outcome.losses, other.outcome.losses)
    np.testing.assert_array_equal(one.scores.predictions, other.scores.predictions)
    assert one.report.rows == other.report.rows


@pytest.mark.parametrize(
    "kind",
    [
        RowOptimizer.ROWWISE_ADAGRAD,
        RowOptimizer.FTRL,
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("sgd", "adagrad", "adam")),
    ],
)
def test_a_run_on_a_device_gives_the_bits_of_the_servers_optimizers(job: JobSpec, kind: RowOptimizer | str) -> None:
    spec = RowOptimizerSpec(kind=RowOptimizer(kind), l2=0.01, l1=0.02, initial_accumulator=0.1)
    job = replace(job, groups=tuple(replace(group, optimizer=spec) for group in job.groups))
    pulled = finish(replace(job, window=0), in_process=True, score=True)
    on_device = finish(replace(job, device="cpu"), in_process=True, score=True)
    assert_same_bits(on_device, pulled)


@pytest.mark.parametrize("window", [0, pytest.param(1, marks=pytest.mark.slow), 16, AUTO_WINDOW])
def test_any_window_gives_them(job: JobSpec, window: int) -> None:
    on_host = finish(job, in_process=True, score=True)
    on_device = finish(replace(job, device="cpu", window=window), in_process=True, score=True)
    assert_same_bits(on_device, on_host)
    moved = on_device.report.traffic
    assert (moved["to_device"] > 0) == (moved["from_device"] > 0) == (window != 0)
    assert on_host.report.traffic["to_device"] == 0


def test_rows_that_are_rejected_are_named_once_the_device_has_told(job: JobSpec) -> None:
    job = replace(job, device="cpu", max_steps=8)
    log = train_towers(job, make=lambda: Poisoned(1)).logs[0]
    assert np.isnan(log.losses).nonzero()[0].tolist() == [2]
    on_host = train_towers(replace(job, device=HOST_DEVICE), make=lambda: Poisoned(1)).logs[0]
    assert log.rejected_rows == on_host.rejected_rows > 0
    assert log.rejected_examples == on_host.rejected_examples


@pytest.mark.parametrize("towers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_several_towers_equal_one_and_those_in_host_memory(job: JobSpec, towers: int) -> None:
    several = replace(job, towers=RoleSpec(count=towers), max_steps=20)
    on_device = train_towers(replace(several, device="cpu")).logs
    on_host = train_towers(several).logs
    one = train_towers(replace(job, device="cpu", max_steps=20)).logs[0]
    for own, theirs in zip(on_device, on_host, strict=True):
        np.testing.assert_array_equal(own.losses, theirs.losses)
        np.testing.assert_allclose(own.losses, one.losses, rtol=1e-5)


def test_a_run_goes_on_from_its_snapshot_on_a_device_and_off_it(job: JobSpec, tmp_path: Path) -> None:
    """A snapshot in the middle of a window, gone on from on a device, in host memory, and the other way round."""
    job = replace(job, max_steps=20)
    whole = train_on(job, tmp_path / "whole", resumed=False)
    cut = replace(job, snapshots=SnapshotSpec(every_steps=10, every_s=None), max_steps=14)
    for first, then in (("cpu", HOST_DEVICE), (HOST_DEVICE, "cpu"), ("cpu", "cpu")):
        folder = tmp_path / f"{first}-{then}"
        train_on(replace(cut, device=first), folder, resumed=False)
        assert_equal(train_on(replace(job, device=then), folder, resumed=True), whole)


def test_a_device_that_is_not_there_is_named(job: JobSpec) -> None:
    with pytest.raises(JobError, match=r"roles.towers.device: there is no device `nonesuch`"):
        finish(replace(job, device="nonesuch"), in_process=True)


def test_a_device_with_too_little_memory_is_told_with_numbers() -> None:
    with pytest.raises(
        CapacityError, match="800 bytes for leased rows, but a GPU has 500 of 1000 bytes free, of which"
    ):
        check_room(500, 1000, window_bytes=800, name="a GPU")
    check_room(1000, 1000, window_bytes=800, name="a GPU")
