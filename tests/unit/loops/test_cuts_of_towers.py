"""Cuts of several towers as threads: all after one step, when the servers hold what a run that ends there does."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from hetero.errors import DeadlineError
from hetero.exchange.messages import Done, Pending
from hetero.exchange.server import RowServer
from hetero.loops.cuts import CutRule, Taken, TowerCuts
from hetero.loops.meeting import Absent, Meetings
from hetero.loops.protocols import Cut
from hetero.loops.separate_cuts import SeparateCuts
from hetero.loops.tower import Cuts
from hetero.parallel.group import TowerGroup
from hetero.records import JobSpec, Mode, RoleSpec, RowOptimizer, RowOptimizerSpec, SnapshotSpec
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.thread_towers import train_towers

Rows = list[dict[tuple[int, int], bytes]]


def rows_of(server: RowServer) -> Rows:
    """Every row, by table and key, per group."""
    return [
        {
            (int(table), int(key)): row.tobytes()
            for keys, rows in store.scan()
            for table, key, row in zip(keys.tables, keys.keys, rows, strict=True)
        }
        for store in server.stores
    ]


@dataclass
class Copied:
    """A server that copies its rows at a cut."""

    server: RowServer
    cuts: dict[str, Rows] = field(default_factory=dict)

    def cut(self, name: str, *, base: str | None) -> Pending[None]:
        self.cuts[name] = rows_of(self.server)
        self.server.note_cut()
        return Done(None)


@dataclass
class Watched:
    """What the towers of a run had cut. One cut for a snapshot at `at` steps, which tower 0 asks for."""

    at: int
    meetings: Meetings = field(default_factory=lambda: Meetings(towers=2))
    lock: threading.Lock = field(default_factory=threading.Lock)
    taken: list[tuple[int, Taken]] = field(default_factory=list)
    servers: list[Copied] = field(default_factory=list)

    def joint(self, rank: int, group: TowerGroup, servers: list[RowServer]) -> Cuts:
        if rank == 0:
            self.servers += [Copied(server) for server in servers]
        rule = CutRule(SnapshotSpec(every_steps=self.at) if rank == 0 else SnapshotSpec())
        return TowerCuts(
            rule=rule, group=group, servers=lambda: self.servers, taken=lambda taken: self.note(rank, taken)
        )

    def separate(self, rank: int, group: TowerGroup, servers: list[RowServer]) -> Cuts:
        if rank == 0:
            self.servers += [Copied(server) for server in servers]
        rule = CutRule(SnapshotSpec(every_steps=self.at) if rank == 0 else SnapshotSpec())
        if rank:
            rule.ask(Cut.SNAPSHOT)  # at its first step, well before tower 0: it waits, and then trains on
        return SeparateCuts(
            rule=rule,
            tower=rank,
            place=self,
            servers=self.servers,
            taken=lambda taken: self.note(rank, taken),
            wait_s=20.0,
        )

    def meet(self, tower: int, *, number: int, value: int) -> int | Absent:
        with self.lock:
            return self.meetings.meet(tower, number=number, value=value)

    def leave(self, tower: int) -> None:
        with self.lock:
            self.meetings.leave(tower)

    def note(self, rank: int, taken: Taken) -> None:
        with self.lock:
            self.taken.append((rank, taken))


def job_of(folder: Path, **changes: object) -> JobSpec:
    data = data_spec(write_data(folder / "data.parquet", rows=12 * 64 + 9, seed=5), shuffle=True)
    return small_job(data, towers=RoleSpec(count=2), servers=RoleSpec(count=2), **changes)


@pytest.mark.parametrize(("window", "at"), [(0, 5), (4, 4), (4, 6)])
def test_the_servers_hold_what_a_run_that_ends_there_does(tmp_path: Path, window: int, at: int) -> None:
    """Rows that are leased at the cut, given back before it, or fetched for the next window among them."""
    job = job_of(tmp_path, window=window)
    watched = Watched(at)
    whole = train_towers(job, make_cuts=watched.joint)
    ended = train_towers(replace(job, max_steps=at))
    assert [rank for rank, _ in watched.taken] == [0]  # the rule is busy with the first until it is told it is written
    taken = watched.taken[0][1]
    assert taken.state.cursor.step == at
    for copied, server in zip(watched.servers, ended.servers, strict=True):
        for now, want in zip(copied.cuts[taken.name], rows_of(server), strict=True):
            assert {key: now[key] for key in want} == want
            if not window:
                assert now.keys() == want.keys()
    for name, value in ended.towers[0].module.state_dict().items():
        np.testing.assert_array_equal(taken.state.dense[name].numpy(), value.numpy())
    assert len(whole.logs[0].losses) == 13


@pytest.mark.parametrize("mode", [Mode.ASYNC, Mode.GEO])
def test_towers_without_a_sum_agree_on_a_step(tmp_path: Path, mode: Mode) -> None:
    job = job_of(tmp_path, mode=mode, staleness=5 if mode is Mode.GEO else 0)
    adagrad = RowOptimizerSpec(kind=RowOptimizer.ADAGRAD, lr=0.02)
    job = replace(job, groups=tuple(replace(group, optimizer=adagrad) for group in job.groups))
    watched = Watched(5)
    trained = train_towers(job, make_cuts=watched.separate)
    assert sorted(rank for rank, _ in watched.taken) == [0, 1]
    cursors = [taken.state.cursor for _, taken in watched.taken]
    assert cursors[0] == cursors[1]
    assert cursors[0].step >= 5
    for _, taken in watched.taken:
        assert len(taken.state.history["losses"]) == cursors[0].step
    assert [len(log.losses) for log in trained.logs] == [13, 13]


def test_who_does_not_come_to_a_meeting_is_waited_for_no_longer_than_said() -> None:
    cuts = SeparateCuts(
        rule=CutRule(SnapshotSpec(every_steps=1)),
        tower=0,
        place=Meetings(towers=2),
        servers=[],
        taken=lambda _: None,
        wait_s=0.05,
    )
    with pytest.raises(DeadlineError, match=r"did not come to the cut for a snapshot within 0\.05 s"):
        cuts.meet(3)
