"""Where a step's sparse side runs, and that its work is done in order, its errors told."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hetero.loops.sparse_lane import THREAD, StepLane, ThreadLane, lane_of
from hetero.observe.spans import SpanClock
from hetero.records import JobSpec, Mode, RoleSpec
from tests.support.joint_jobs import joint_data, joint_job

DEADLINE_S = 20.0


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    return joint_job(joint_data(tmp_path / "none.parquet"))


def is_apart(job: JobSpec, *, holds_rows: bool = False) -> bool:
    return isinstance(lane_of(job, clock=SpanClock(), holds_rows=holds_rows), ThreadLane)


def test_only_texts_are_worth_a_thread_and_only_without_collectives(job: JobSpec) -> None:
    two = replace(job, towers=RoleSpec(count=2))
    assert is_apart(replace(job, window=4))
    assert is_apart(replace(two, window=0))
    assert not is_apart(replace(two, window=4))  # leased rows are swapped by collectives
    assert not is_apart(replace(job, mode=Mode.BOUNDED))
    assert not is_apart(job, holds_rows=True)
    assert not is_apart(replace(job, train=replace(job.train, texts=())))
    assert not is_apart(replace(job, lookups=()))


def test_a_thread_works_in_order_while_the_step_goes_on() -> None:
    lane, met, seen = ThreadLane(), threading.Event(), []

    def first() -> int:
        assert met.wait(DEADLINE_S)
        seen.append("first")
        return threading.get_native_id()

    one, two = lane.begin(first), lane.begin(lambda: seen.append("second"))
    assert not seen
    met.set()
    assert one.result() != threading.get_native_id()
    two.result()
    assert seen == ["first", "second"]


def test_its_errors_are_raised_where_the_result_is_asked_for() -> None:
    def fails() -> None:
        raise ValueError("no rows")

    failed = ThreadLane().begin(fails)
    with pytest.raises(ValueError, match="no rows"):
        failed.result()
    with pytest.raises(ValueError, match="no rows"):
        StepLane(SpanClock()).begin(fails)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="names of threads are read from /proc")
def test_the_system_knows_it_by_its_name() -> None:
    lane = ThreadLane()
    thread = lane.begin(threading.get_native_id).result()
    assert Path(f"/proc/self/task/{thread}/comm").read_text(encoding="utf-8").strip() == THREAD


def test_a_thread_that_computes_in_python_lets_the_step_go_on_soon() -> None:
    before = sys.getswitchinterval()
    try:
        StepLane(SpanClock())
        assert sys.getswitchinterval() == before
        ThreadLane()
        assert sys.getswitchinterval() <= 1e-3
        sys.setswitchinterval(1e-4)  # a user's own choice, which is shorter
        ThreadLane()
        assert sys.getswitchinterval() == pytest.approx(1e-4, abs=2e-6)  # the system keeps whole microseconds
    finally:
        sys.setswitchinterval(before)
