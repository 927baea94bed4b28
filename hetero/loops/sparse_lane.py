"""Where a step's sparse side runs: rows and their lookup, gradients and their update.

    step's thread   texts --------------> head, loss, its backward ----------> texts' backward -> dense update -> texts
    sparse side     rows, lookup ------/                          \\--> rows' gradients, update -> the next rows, lookup

A tower that reads texts has much to do before it needs rows and after it knows their gradients. Where the sparse side
issues no collectives it has a thread of its own; otherwise both run in turn, with the same bits. A tower alone waits
for the update of a step's rows when the next step needs rows; of several towers none begins the sum over all before
its gradients are given.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from hetero.exchange.messages import Pending
from hetero.observe.spans import SpanClock
from hetero.records import JobSpec, Mode

Result = TypeVar("Result")

THREAD = "sparse"
"""The thread's name, as the system and its profilers show it."""
_SWITCH_S = 5e-4
"""Within which a thread that runs Python lets the other one go on (Python's own is 5 ms): a step's thread asks for that
at each of its operations, hundreds of times a step."""


class SparseLane(Protocol):
    """clock: of the thread that does the work. apart: whether that is another than the step's."""

    clock: SpanClock
    apart: bool

    def begin(self, work: Callable[[], Result]) -> Pending[Result]:
        """Do it after what was begun before; `result` raises what it raised."""


@dataclass(frozen=True, slots=True)
class _Done(Generic[Result]):
    value: Result

    def result(self) -> Result:
        return self.value


class StepLane:
    """In the step's thread, at once."""

    apart = False

    def __init__(self, clock: SpanClock) -> None:
        self.clock = clock

    def begin(self, work: Callable[[], Result]) -> Pending[Result]:
        return _Done(work())


class ThreadLane:
    """In a thread of its own. What it waits for is not waiting of the step's thread, so its clock is apart."""

    apart = True

    def __init__(self) -> None:
        self.clock = SpanClock()
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_S))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=THREAD, initializer=_name_thread)
        self._thread.submit(threading.get_native_id).result()

    def begin(self, work: Callable[[], Result]) -> Pending[Result]:
        return self._thread.submit(work)


def lane_of(job: JobSpec, *, clock: SpanClock, holds_rows: bool) -> SparseLane:
    """clock: of the step's thread. holds_rows: whether rows lie on a device of the tower.

    Towers that lease rows together swap them by collectives, which the step's thread alone issues; modes but `sync`
    bring dense parameters with the rows.
    """
    swaps = job.window != 0 and job.towers.count > 1
    if not job.train.texts or not job.lookups or swaps or holds_rows or job.mode is not Mode.SYNC:
        return StepLane(clock)
    return ThreadLane()


def _name_thread() -> None:
    with suppress(OSError):  # not on every system
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(THREAD, encoding="ascii")
