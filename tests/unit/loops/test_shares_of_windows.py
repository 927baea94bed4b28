"""The sequencer as its actor has it, without Ray: shares that are asked for hold from a later window on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import actors.sequencer
from actors.context import RunContext
from actors.sequencer import SequencerActor
from hetero.keys.sequencer import SplitId, Turn
from hetero.keys.windows import TowerWindow
from hetero.loops.protocols import Phase
from hetero.loops.reader import Reader
from hetero.loops.run import DataPass
from hetero.loops.windows import LocalKeys
from hetero.records import RoleSpec, SharesFrom, ShareSpec
from tests.support.jobs import data_spec, small_job, write_data

DEADLINE_S = 30.0


def window_of(actor: SequencerActor, tower: int, acknowledged: list[int]) -> TowerWindow | None:
    """The tower's next window; None at the end."""
    deadline_t = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_t:
        turn = actor.take_window(tower, acknowledged=acknowledged, crossed=None)
        acknowledged = []
        if isinstance(turn, TowerWindow):
            return turn
        if turn is Turn.END:
            return None
    raise AssertionError("no window came")


def test_shares_change_where_a_window_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_data(tmp_path / "data.parquet", rows=40 * 64, seed=1, row_group=40 * 64)
    job = small_job(data_spec(path), window=4, towers=RoleSpec(count=2), shares=ShareSpec(measured=True), batch_size=64)
    data = DataPass.open(job.train, phase=Phase.TRAIN)
    reader = Reader(job, index=0, data=data.data, splits=data.splits)
    monkeypatch.setattr(actors.sequencer, "RemoteReader", lambda *_, **__: LocalKeys(reader))
    actor = SequencerActor(RunContext(run="shares", job=job))
    no_peer: Any = None
    actor.open(data, [no_peer])
    claim = actor.claim(0, 0)
    assert isinstance(claim.split, SplitId)
    actor.report(0, reader.load(claim.split), 0)

    told: list[SharesFrom] = []
    rows: list[tuple[int, int]] = []
    taken: list[list[int]] = [[], []]
    while True:
        windows = [window_of(actor, tower, taken[tower]) for tower in range(2)]
        if windows[0] is None or windows[1] is None:
            break
        taken = [[spec.step for spec in window.specs] for window in windows if window is not None]
        rows += [(a.rows, b.rows) for a, b in zip(windows[0].specs, windows[1].specs, strict=True)]
        if windows[0].index == 1:
            actor.ask_shares((48, 16))
        told += actor.news().shares
    assert len(rows) == 40
    assert [change.parts for change in told] == [(1, 1), (48, 16)]
    changed = told[1].step
    assert changed % 4 == 0
    assert 8 <= changed < 32
    assert rows == [(32, 32)] * changed + [(48, 16)] * (40 - changed)
