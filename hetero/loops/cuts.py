"""When a run is cut for a snapshot, and how all towers cut at the same step.

Consumes   the job's rule, requests from outside; the flags of all towers, in the step's sum
Produces   servers that hold every row as it is after the step, and settle that; a copy of the tower's own state
Waits for  servers (updates under way), towers (to come to the cut)

In order: every tower lets the servers hold all its updates and the values of the rows it leases; when all have, tower 0
copies its state and has every server settle what the snapshot holds; when that is done, all go on, with rows asked for
anew where they were asked for ahead: nothing was under way at the cut, so a resumed run goes on as this one does. What
was settled is written meanwhile. While that lasts no second cut begins: a wish for one waits.

Buckets move between servers at such a cut too, but for which every tower gives its leased rows back, and leases them
anew from whoever holds them then (`hetero.loops.moves`). While a move is prepared no snapshot begins; a stop may.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from hetero.checkpoint.snapshot import snapshot_name
from hetero.errors import ProtocolError
from hetero.exchange.messages import Pending
from hetero.exchange.sources import RowSource
from hetero.loops.protocols import Cut
from hetero.loops.tower import Tower
from hetero.loops.tower_state import TowerState
from hetero.parallel.group import TowerGroup
from hetero.records import BatchSpec, SnapshotSpec

_STOP_FLAG = 4096.0  # more than there are towers, so that the sum tells whether anyone flags a stop
_FLAG = {Cut.NONE: 0.0, Cut.MOVE: 0.5, Cut.SNAPSHOT: 1.0, Cut.STOP: _STOP_FLAG}  # MOVE: by tower 0 alone


class Move(Protocol):
    """What tower 0 does when buckets move."""

    def hand_over(self, steps: int) -> None:
        """Let servers send each other what is left, and go by the new routing: no row is leased, no push under way."""

    def over(self, pause_s: float) -> None:
        """All towers train again, after so many seconds."""


class NoMove:
    """Servers stay what they are."""

    def hand_over(self, steps: int) -> None:
        raise ProtocolError("towers were cut for a move of buckets that nobody prepared")

    def over(self, pause_s: float) -> None:
        """Nothing to tell."""


class CutServer(Protocol):
    """A server that settles what a snapshot holds, in the lane of the tower that asks."""

    def cut(self, name: str, *, base: str | None) -> Pending[None]:
        """base: the snapshot since which rows changed that are to be in it; None for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A cut that waits to be written. base: as the servers were told. pause_s: seconds for which the tower did not
    train."""

    name: str
    base: str | None
    cut: Cut
    state: TowerState
    pause_s: float


class CutRule:
    """Says when a cut is wanted: by steps, by seconds since the last one, on request. Any thread may ask.

    now: a monotonic clock in seconds.
    """

    def __init__(self, spec: SnapshotSpec, *, now: Callable[[], float] = time.monotonic) -> None:
        self._spec = spec
        self._now = now
        self._last_t = now()
        self._asked = Cut.NONE
        self._due = False
        self._flagged = False
        self._writing = False
        self._held = False
        self._move_asked = False
        self._base: str | None = None
        self._lock = threading.Lock()

    def ask(self, cut: Cut) -> None:
        """Ask for a cut after the step under way; a stop outweighs a snapshot."""
        with self._lock:
            if self._asked is not Cut.STOP:
                self._asked = cut

    def wanted(self, steps: int) -> Cut:
        """What is wanted once `steps` steps are done."""
        with self._lock:
            every = self._spec.every_steps
            self._due = self._due or (every is not None and steps % every == 0)
            if self._writing:
                return Cut.NONE
            if self._held:
                moves = Cut.MOVE if self._move_asked else Cut.NONE
                return self._asked if self._asked is Cut.STOP else moves
            late = self._spec.every_s is not None and self._now() - self._last_t >= self._spec.every_s
            wanted = Cut.SNAPSHOT if self._due or late else Cut.NONE
            wanted = wanted if self._asked is Cut.NONE else self._asked
            self._flagged = wanted is not Cut.NONE
            return wanted

    def hold(self) -> bool:
        """Put snapshots off, stops excepted, until `release`; the next one holds all rows. False while one that began
        before is being made: ask again."""
        with self._lock:
            self._held = True
            if self._writing or self._flagged or self._asked is Cut.STOP:
                return False
            self._base = None
            return True

    def release(self) -> None:
        """Snapshots may begin again; a move that was asked for is not wanted any more."""
        with self._lock:
            self._held = self._move_asked = False

    def ask_move(self) -> None:
        """Ask for a move after the step under way. Raises ProtocolError unless snapshots are put off."""
        with self._lock:
            if not self._held:
                raise ProtocolError("a move was asked for while snapshots may begin")
            self._move_asked = True

    def moved(self) -> None:
        """What was asked for is done."""
        with self._lock:
            self._move_asked = False

    def withdraw(self) -> None:
        """What was asked for cannot be: the run is about to end."""
        with self._lock:
            self._asked, self._due, self._flagged = Cut.NONE, False, False

    def begun(self) -> None:
        """A cut was made and is being written."""
        with self._lock:
            self._writing, self._due, self._flagged, self._asked = True, False, False, Cut.NONE
            self._last_t = self._now()

    def written(self, *, base: str | None) -> None:
        """It is written, or given up. base: the snapshot that the next one may tell the changes from."""
        with self._lock:
            self._writing, self._base = False, base

    @property
    def base(self) -> str | None:
        """The snapshot that the next one may tell the changes from."""
        return self._base


class TowerCuts:
    """The cuts of one tower, for `hetero.loops.tower.train`. servers: those there are now. taken: what tower 0 does
    with each. move: of tower 0.

    Every tower has a rule for requests; tower 0's holds the job's times too, and alone is asked for moves.
    """

    def __init__(
        self,
        *,
        rule: CutRule,
        group: TowerGroup,
        servers: Callable[[], Sequence[CutServer]],
        taken: Callable[[Taken], None],
        move: Move | None = None,
    ) -> None:
        self._rule = rule
        self._move = move or NoMove()
        self._group = group
        self._servers = servers
        self._taken = taken

    def flag(self, spec: BatchSpec) -> float:
        return _FLAG[self._rule.wanted(spec.step + 1)]

    def after(self, tower: Tower, source: RowSource, spec: BatchSpec, flags: float) -> Cut:
        if not flags:
            return Cut.NONE
        started_t = time.perf_counter()
        if flags < _FLAG[Cut.SNAPSHOT]:
            self._move_buckets(tower, source, spec.after.step)
            self._move.over(time.perf_counter() - started_t)
            return Cut.MOVE
        cut = Cut.STOP if flags >= _STOP_FLAG else Cut.SNAPSHOT
        tower.deliver(source, steps=spec.after.step)
        rejected = torch.tensor([float(tower.log.rejected_rows)])
        self._group.sum_(rejected)  # all towers are here when it returns
        self._rule.begun()
        if self._group.rank == 0:
            name, base = snapshot_name(spec.after.step), self._rule.base
            for settled in [server.cut(name, base=base) for server in self._servers()]:
                settled.result()
            state = TowerState.of(tower, spec.after, rejected_rows=int(rejected))
            self._group.sum_(rejected)
            pause_s = time.perf_counter() - started_t
            self._taken(Taken(name=name, base=base, cut=cut, state=state, pause_s=pause_s))
        else:
            self._group.sum_(rejected)
        if cut is not Cut.STOP:
            source.renew()
        return cut

    def end(self) -> None:
        """All towers end at the same step: nobody waits."""

    def _move_buckets(self, tower: Tower, source: RowSource, steps: int) -> None:
        meeting = torch.zeros(1)
        tower.let_go(source, steps=steps)
        self._group.sum_(meeting)  # all towers are here when it returns
        if self._group.rank == 0:
            self._move.hand_over(steps)
            self._rule.moved()
        self._group.sum_(meeting)
        tower.look_for_routing()
        self._group.sum_(meeting)  # servers that leave may end now
        source.take_again()
