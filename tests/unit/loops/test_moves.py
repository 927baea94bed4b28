"""Servers 2 -> 4 -> 1 while training goes on: the bits of the run that never changed, and every row on one server."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from hetero.checkpoint.search import latest_good
from hetero.errors import ProtocolError, UserError
from hetero.exchange.geo_copies import GeoCopies
from hetero.loops.cuts import CutRule, NoMove
from hetero.loops.local import LocalRun
from hetero.loops.moves import ServersChanging, ServersPlace, ServersReport, check_number
from hetero.loops.protocols import Cut, Phase
from hetero.loops.run import DataPass, TrainOutcome
from hetero.loops.snapshots import NOWHERE, SnapshotPlace
from hetero.loops.tower_state import ResumePoint
from hetero.records import AUTO_WINDOW, DiskIo, JobSpec, Mode, RoleSpec, ServersAt, SnapshotSpec, StorageSpec
from hetero.towers.build import make_tower
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.moves import owned_rows

STEPS = 2 * 25
SCHEDULE = (ServersAt(step=5, count=4), ServersAt(step=25, count=1))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    folder: Path = tmp_path_factory.mktemp("data")
    files = [write_data(folder / f"{n}.parquet", rows=rows, seed=n) for n, rows in enumerate((743, 800))]
    return replace(small_job(data_spec(*files, shuffle=True), epochs=2), servers=RoleSpec(count=2), max_steps=STEPS)


@dataclass(kw_only=True)
class Watched:
    """A run in this process. rows: every row by identity, with its bits, after the last step; changed: after each
    change, when every row must have one owner."""

    outcome: TrainOutcome
    rows: list[dict[tuple[int, int], bytes]]
    told: list[ServersChanging | ServersReport] = field(default_factory=list)


def train_on(
    job: JobSpec,
    *,
    place: SnapshotPlace = NOWHERE,
    asked: dict[int, int] | None = None,
    resume: bool = False,
) -> Watched:
    """asked: number of servers to ask for at the n-th look."""
    run = LocalRun(job, make_tower=lambda: make_tower(job))
    told: list[ServersChanging | ServersReport] = []
    looks = iter(range(1 << 30))

    def note(news: ServersChanging | ServersReport) -> None:
        told.append(news)
        if isinstance(news, ServersReport):
            owned_rows(run.servers.servers, run.servers.routing, job=job)  # raises where a row is lost or twice

    data = DataPass.open(job.train, phase=Phase.TRAIN, epochs=job.epochs, max_steps=job.max_steps)
    try:
        if resume:
            assert place.folder is not None
            snapshot = latest_good(place.folder, job=job).good
            assert snapshot is not None
            run.restore(snapshot)
            data = replace(data, start=ResumePoint.of(snapshot).cursor)
        outcome = run.train(
            data,
            watch=lambda _: None,
            snapshots=place,
            servers=ServersPlace(asked=lambda: (asked or {}).get(next(looks)), told=note),
        )
        return Watched(outcome=outcome, rows=owned_rows(run.servers.servers, run.servers.routing, job=job), told=told)
    finally:
        run.close()


@pytest.fixture(scope="module")
def whole(job: JobSpec) -> Watched:
    return train_on(job)


def assert_equal(got: Watched, whole: Watched) -> None:
    np.testing.assert_array_equal(got.outcome.losses, whole.outcome.losses)
    assert got.rows == whole.rows


@pytest.mark.parametrize(
    "window", [0, 4, pytest.param(1, marks=pytest.mark.slow), pytest.param(AUTO_WINDOW, marks=pytest.mark.slow)]
)
def test_two_four_one_is_the_run_that_never_changed(job: JobSpec, whole: Watched, window: int) -> None:
    got = train_on(replace(job, window=window, server_schedule=SCHEDULE))
    assert_equal(got, whole)
    up, down = got.outcome.servers
    assert (up.before, up.after, down.before, down.after) == (2, 4, 4, 1)
    assert 5 < up.step < 25 < down.step < STEPS
    assert all(report.error is None and report.bytes and report.rows and report.pause_s > 0 for report in (up, down))
    assert up.at_boundary > 0  # rows changed while they were copied
    assert [type(news) for news in got.told] == [ServersChanging, ServersReport] * 2


def test_servers_change_on_request(job: JobSpec, whole: Watched) -> None:
    got = train_on(replace(job, window=4), asked={3: 3, 20: 2})
    assert_equal(got, whole)
    assert [(report.before, report.after) for report in got.outcome.servers] == [(2, 3), (3, 2)]


def test_bounded_drains_and_goes_on(job: JobSpec, whole: Watched) -> None:
    """What was pulled ahead is pulled anew, so bits differ; no row is lost, none is made."""
    got = train_on(replace(job, mode=Mode.BOUNDED, staleness=2, server_schedule=SCHEDULE))
    assert [(report.before, report.after, report.error) for report in got.outcome.servers] == [
        (2, 4, None),
        (4, 1, None),
    ]
    assert [rows.keys() for rows in got.rows] == [rows.keys() for rows in whole.rows]
    assert abs(got.outcome.losses[-20:].mean() - whole.outcome.losses[-20:].mean()) < 0.02


@pytest.mark.parametrize("window", [pytest.param(0, marks=pytest.mark.slow), 4])
def test_snapshots_before_while_and_after(job: JobSpec, whole: Watched, tmp_path: Path, window: int) -> None:
    """Those due while buckets move wait for the end of it; each is what a run of any other number goes on from."""
    often = replace(
        job,
        window=window,
        server_schedule=SCHEDULE,
        snapshots=SnapshotSpec(every_steps=3, keep=40, deltas=2),
    )
    got = train_on(often, place=SnapshotPlace(folder=str(tmp_path)))
    assert_equal(got, whole)
    taken = got.outcome.snapshots
    assert all(report.error is None for report in taken)
    up, down = got.outcome.servers
    for change in (up, down):
        assert any(change.step <= report.step <= change.step + 12 for report in taken)
    for report in taken[1 : len(taken) : 4]:
        place = tmp_path / f"from-{report.step}"
        (place).mkdir()
        for other in tmp_path.glob("step-*"):
            if int(other.name[5:]) <= report.step:
                (place / other.name).symlink_to(other)
        again = train_on(
            replace(job, window=4, servers=RoleSpec(count=3)), place=SnapshotPlace(folder=str(place)), resume=True
        )
        assert_equal(again, whole)


@pytest.mark.parametrize(("first", "schedule"), [(1, ServersAt(step=5, count=3)), (3, ServersAt(step=5, count=1))])
@pytest.mark.parametrize("looks", [2, pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_a_stop_while_buckets_move_gives_the_move_up(
    job: JobSpec, whole: Watched, tmp_path: Path, first: int, schedule: ServersAt, looks: int
) -> None:
    moving = replace(job, window=4, servers=RoleSpec(count=first), server_schedule=(schedule,))
    seen = iter(range(1 << 30))
    place = SnapshotPlace(folder=str(tmp_path), stop=lambda: next(seen) >= 4 + looks)
    got = train_on(moving, place=place)
    assert got.outcome.stopped
    (report,) = got.outcome.servers
    assert report.error == "training ended"
    assert latest_good(tmp_path, job=job).good is not None
    assert_equal(train_on(replace(job, window=0), place=SnapshotPlace(folder=str(tmp_path)), resume=True), whole)


def test_a_change_that_training_does_not_wait_for_is_given_up(job: JobSpec, whole: Watched) -> None:
    got = train_on(replace(job, window=4, server_schedule=(ServersAt(step=STEPS - 1, count=4),)))
    assert_equal(got, whole)
    (report,) = got.outcome.servers
    assert (report.before, report.after, report.error) == (2, 4, "training ended")


def test_a_wish_that_cannot_be_ends_nothing(job: JobSpec) -> None:
    got = train_on(replace(job, mode=Mode.ASYNC, max_steps=10), asked={2: 3})
    (report,) = got.outcome.servers
    assert report.error is not None
    assert "mode `async` keeps dense parameters on the servers" in report.error
    assert len(got.outcome.losses) == 10


def test_who_cannot_change_is_told_why(job: JobSpec) -> None:
    storage = StorageSpec(memory_bytes=1 << 20, directories=("d",), ssd_bytes=1 << 20, io=DiskIo.CACHED)
    with pytest.raises(UserError, match=r"rows on SSD .* do not tell what changed"):
        check_number(replace(job, storage=storage), 3)
    for mode in (Mode.ASYNC, Mode.GEO):
        with pytest.raises(UserError, match=rf"mode `{mode.value}` keeps dense parameters on the servers"):
            check_number(replace(job, mode=mode), 3)
    for servers in (0, job.buckets + 1):
        with pytest.raises(UserError, match=rf"{servers} servers: take 1 to {job.buckets}"):
            check_number(job, servers)
    check_number(job, job.buckets)


def test_while_a_move_is_prepared_snapshots_wait_and_a_stop_does_not() -> None:
    rule = CutRule(SnapshotSpec(every_steps=5))
    with pytest.raises(ProtocolError, match="while snapshots may begin"):
        rule.ask_move()
    assert rule.wanted(5) is Cut.SNAPSHOT
    assert not rule.hold()  # flagged already: the towers will cut
    rule.begun()
    assert not rule.hold()
    assert rule.wanted(6) is Cut.NONE
    rule.written(base="step-5")
    assert rule.wanted(10) is Cut.NONE  # due, and put off since the first call
    assert rule.hold()
    assert rule.base is None  # the next snapshot holds all rows
    assert rule.wanted(10) is Cut.NONE
    rule.ask_move()
    assert rule.wanted(11) is Cut.MOVE
    rule.ask(Cut.STOP)
    assert rule.wanted(12) is Cut.STOP
    rule = CutRule(SnapshotSpec(every_steps=5))
    assert rule.hold()
    assert rule.wanted(5) is Cut.NONE
    rule.ask_move()
    rule.moved()
    assert rule.wanted(6) is Cut.NONE
    rule.release()
    assert rule.wanted(7) is Cut.SNAPSHOT


def test_towers_are_not_cut_for_a_move_that_nobody_prepared() -> None:
    with pytest.raises(ProtocolError, match="a move of buckets that nobody prepared"):
        NoMove().hand_over(3)
    with pytest.raises(ProtocolError, match="geo: servers cannot change while training"):
        GeoCopies.__new__(GeoCopies).let_go(3)
