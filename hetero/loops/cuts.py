"""When a run is cut for a snapshot, and how all towers cut at the same step.

Consumes   the job's rule, requests from outside; the flags of all towers, in the step's sum
Produces   servers that hold every row as it is after the step, and settle that; a copy of the tower's own state
Waits for  servers (updates under way), towers (to come to the cut)

In order: every tower lets the servers hold all its updates and the values of the rows it leases; when all have, tower 0
copies its state and has every server settle what the snapshot holds; when that is done, all go on, with rows asked for
anew where they were asked for ahead: nothing was under way at the cut, so a resumed run goes on as this one does. What
was settled is written meanwhile. While that lasts no second cut begins: a wish for one waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from hetero.checkpoint.snapshot import snapshot_name
from hetero.exchange.messages import Pending
from hetero.exchange.sources import RowSource
from hetero.loops.protocols import Cut
from hetero.loops.tower import Tower
from hetero.loops.tower_state import TowerState
from hetero.parallel.group import TowerGroup
from hetero.records import BatchSpec, SnapshotSpec

_STOP_FLAG = 4096.0  # more than there are towers, so that the sum tells whether anyone flags a stop
_FLAG = {Cut.NONE: 0.0, Cut.SNAPSHOT: 1.0, Cut.STOP: _STOP_FLAG}


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
        self._writing = False
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
            if self._asked is not Cut.NONE:
                return self._asked
            late = self._spec.every_s is not None and self._now() - self._last_t >= self._spec.every_s
            return Cut.SNAPSHOT if self._due or late else Cut.NONE

    def withdraw(self) -> None:
        """What was asked for cannot be: the run is about to end."""
        with self._lock:
            self._asked, self._due = Cut.NONE, False

    def begun(self) -> None:
        """A cut was made and is being written."""
        with self._lock:
            self._writing, self._due, self._asked = True, False, Cut.NONE
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
    """The cuts of one tower, for `hetero.loops.tower.train`. taken: what tower 0 does with each.

    Every tower has a rule for requests; tower 0's holds the job's times too.
    """

    def __init__(
        self, *, rule: CutRule, group: TowerGroup, servers: Sequence[CutServer], taken: Callable[[Taken], None]
    ) -> None:
        self._rule = rule
        self._group = group
        self._servers = servers
        self._taken = taken

    def flag(self, spec: BatchSpec) -> float:
        return _FLAG[self._rule.wanted(spec.step + 1)]

    def after(self, tower: Tower, source: RowSource, spec: BatchSpec, flags: float) -> Cut:
        if not flags:
            return Cut.NONE
        started_t = time.perf_counter()
        cut = Cut.STOP if flags >= _STOP_FLAG else Cut.SNAPSHOT
        tower.deliver(source, steps=spec.after.step)
        rejected = torch.tensor([float(tower.log.rejected_rows)])
        self._group.sum_(rejected)  # all towers are here when it returns
        self._rule.begun()
        if self._group.rank == 0:
            name, base = snapshot_name(spec.after.step), self._rule.base
            for settled in [server.cut(name, base=base) for server in self._servers]:
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
