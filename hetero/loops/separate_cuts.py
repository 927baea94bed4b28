"""Cuts of towers that have no sum over towers (`async`, `geo`): they agree on a step at a meeting.

A tower that is asked for a cut comes to a meeting with the number of steps it has done, and waits there; the greatest
is the step of the cut, and the others train on until they are there too. Such towers never wait for each other
otherwise, so nobody waits for one who waits here. When one has ended, there is no cut: the rest is about to end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hetero.checkpoint.snapshot import snapshot_name
from hetero.errors import DeadlineError
from hetero.exchange.sources import RowSource
from hetero.loops.cuts import CutRule, CutServer, Taken
from hetero.loops.meeting import Absent, MeetingPlace
from hetero.loops.protocols import Cut
from hetero.loops.tower import Tower
from hetero.loops.tower_state import TowerState
from hetero.records import BatchSpec


class SeparateCuts:
    """The cuts of one tower, for `hetero.loops.tower.train`. taken: what every tower does with each: tower 0 has the
    run's state, the others their share of the losses. wait_s: how long to wait for the others."""

    def __init__(
        self,
        *,
        rule: CutRule,
        tower: int,
        place: MeetingPlace,
        servers: Sequence[CutServer],
        taken: Callable[[Taken], None],
        wait_s: float,
    ) -> None:
        self._rule = rule
        self._number = tower
        self._place = place
        self._servers = servers
        self._taken = taken
        self._wait_s = wait_s
        self._meeting = 0
        self._planned: tuple[int, Cut] | None = None

    def flag(self, spec: BatchSpec) -> float:
        """There is no sum to tell it in."""
        return 0.0

    def after(self, tower: Tower, source: RowSource, spec: BatchSpec, flags: float) -> Cut:
        steps = spec.after.step
        if self._planned is None:
            wanted = self._rule.wanted(steps)
            if wanted is Cut.NONE:
                return Cut.NONE
            agreed = self.meet(steps)
            if agreed is None:
                self._rule.withdraw()
                return Cut.NONE
            self._planned = (agreed, wanted)
        if steps < self._planned[0]:
            return Cut.NONE
        (_, cut), self._planned = self._planned, None
        started_t = time.perf_counter()
        tower.deliver(source, steps=steps)
        self._rule.begun()
        if self.meet(steps) is None:
            self._rule.written(base=self._rule.base)
            return Cut.NONE
        name, base = snapshot_name(steps), self._rule.base
        if self._number == 0:
            for settled in [server.cut(name, base=base) for server in self._servers]:
                settled.result()
            state = TowerState.of(tower, spec.after, rejected_rows=tower.log.rejected_rows)
        else:
            state = TowerState.share(tower, spec.after)
        self.meet(steps)
        if cut is not Cut.STOP:
            source.renew()
        pause_s = time.perf_counter() - started_t
        self._taken(Taken(name=name, base=base, cut=cut, state=state, pause_s=pause_s))
        return cut

    def end(self) -> None:
        self._place.leave(self._number)

    def meet(self, value: int) -> int | None:
        """Come to the next meeting: the greatest value of all towers, or None when one has ended.

        Raises DeadlineError when the others do not come.
        """
        number, self._meeting = self._meeting, self._meeting + 1
        deadline_t = time.monotonic() + self._wait_s
        while (met := self._place.meet(self._number, number=number, value=value)) is Absent.YET:
            if time.monotonic() > deadline_t:
                raise DeadlineError(
                    f"tower {self._number}: the other towers did not come to the cut for a snapshot within "
                    f"{self._wait_s:g} s"
                )
        return None if isinstance(met, Absent) else met
