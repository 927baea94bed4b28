"""Rows leased by a tower for a window: the tower holds them with their optimizer state and updates them itself.

Consumes   TowerWindows in order; gradients
Produces   rows of every step; rows given back to the servers as they leave
Waits for  servers (rows that enter, normally there long before); towers (rows and gradients of each other's share)

Between windows w and w + 1, in this order: rows that leave are read out and sent back; rows that enter, which were
asked for while w trained, take their slots. From then on rows that enter w + 2 are asked for, as soon as that window is
known. So the fetch for w + 2 follows the return of w in each server's lane, and nothing stale is read.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hetero.errors import ProtocolError
from hetero.exchange.carriers import Carrier, LaneCarrier, StepCarrier
from hetero.exchange.client import PushSummary
from hetero.exchange.device_copies import Copies
from hetero.exchange.device_group import DeviceGroup
from hetero.exchange.held_rows import Arrived, HeldGroup, Rejections
from hetero.exchange.leased_group import LeasedGroup
from hetero.exchange.messages import Pending, RejectedGradient
from hetero.exchange.traffic import Traffic
from hetero.keys.windows import StepRoute, TowerWindow
from hetero.observe.spans import Span, SpanClock
from hetero.parallel.group import TowerGroup
from hetero.records import F32, I32, Batch, BatchSpec, JobSpec, KeySet

_MAX_EXAMPLES = 8


class LeaseClient(Protocol):
    """What leasing needs of the servers; each serves one tower's calls in order."""

    def lease(
        self, keys: Sequence[KeySet], *, window: int, clock: SpanClock | None = None
    ) -> Pending[tuple[F32, ...]]: ...

    def give_back(
        self, keys: Sequence[KeySet], rows: Sequence[F32], *, window: int, flush: int | None = None
    ) -> None: ...

    def note_leased(self, keys: Sequence[KeySet], rows: Sequence[F32], *, steps: int) -> None: ...

    def settle(self) -> PushSummary: ...


class Windows(Protocol):
    """A tower's windows in order, the last one without steps."""

    def next_window(self) -> TowerWindow | None:
        """Wait for the next one; None after the last."""

    def window_here(self) -> TowerWindow | None:
        """The next one if it is here already."""

    def crossed(self, share: float) -> None:
        """Hear, at every boundary but the first, what share of the time since the one before it took, waiting for
        windows left out: longer ones would not come sooner."""


class GivenWindows:
    """Windows that are all there."""

    def __init__(self, windows: Iterable[TowerWindow]) -> None:
        self._windows = deque(windows)

    def next_window(self) -> TowerWindow | None:
        return self._windows.popleft() if self._windows else None

    def window_here(self) -> TowerWindow | None:
        return self.next_window()

    def crossed(self, share: float) -> None:
        """Their lengths are what they are."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """An update whose rejections may not be known yet. unique: the keys of this tower's batch."""

    step: int
    group: int
    unique: KeySet
    route: StepRoute
    rejections: Rejections


class LeasedRows:
    """A RowSource over windows.

    device: where rows are held and updated; None for host memory and CPU kernels. background: whether a thread of its
    own may call the client, for a device; not where client and servers live in this thread. traffic: where the bytes
    swapped with other towers and copied to and from the device are counted.
    """

    def __init__(
        self,
        job: JobSpec,
        *,
        client: LeaseClient,
        group: TowerGroup,
        windows: Windows,
        clock: SpanClock,
        traffic: Traffic | None = None,
        device: torch.device | None = None,
        background: bool = False,
    ) -> None:
        self._traffic = traffic or Traffic()
        self._job = job
        self._client = client
        self._towers = group
        self._windows = windows
        self._clock = clock
        self._copies = None if device is None else Copies(device, self._traffic)
        self._groups, self._carrier = _held(job, copies=self._copies, background=background, clock=clock)
        self._routes: dict[int, tuple[StepRoute, ...]] = {}
        self._entering: tuple[TowerWindow, Pending[tuple[Arrived, ...]]] | None = None
        self._judged: deque[_Judged] = deque()
        self._ended = False
        self._window = 0
        self._crossed_t: float | None = None

    def rows(self, spec: BatchSpec, batch: Batch) -> tuple[Tensor, ...]:
        while spec.step not in self._routes and not self._ended:  # twice where a day begins
            self._advance()
        self._ask_ahead()
        routes = self._routes.get(spec.step)
        if routes is None:
            raise ProtocolError(f"step {spec.step} is not in the window that was to hold it")
        return tuple(self._collect(held, route) for held, route in zip(self._groups, routes, strict=True))

    def apply(self, spec: BatchSpec, batch: Batch, gradients: tuple[Tensor, ...]) -> PushSummary:
        routes = self._routes.pop(spec.step)
        for index, (held, route) in enumerate(zip(self._groups, routes, strict=True)):
            merged = self._merge(held, route, gradients[index])
            rejections = held.update(route.merged_slots, merged, step=spec.step)
            self._judged.append(_Judged(spec.step, index, batch.groups[index].unique, route, rejections))
        return self._told(wait=False)

    def deliver(self, steps: int) -> PushSummary:
        self._carrier.settle()
        held = [held.held() for held in self._groups]
        if self._job.storage is not None:
            held = self._with_entering(held)
        self._client.note_leased([keys for keys, _ in held], [rows for _, rows in held], steps=steps)
        return self._settled()

    def _with_entering(self, held: list[tuple[KeySet, F32]]) -> list[tuple[KeySet, F32]]:
        """Those rows and those fetched for the next window: a server with rows on SSD keeps none of either."""
        if self._entering is None:
            return held
        window, entering = self._entering
        return [
            (
                KeySet(
                    np.concatenate([keys.tables, moves.enter.tables]), np.concatenate([keys.keys, moves.enter.keys])
                ),
                np.concatenate([own, fresh.rows]),
            )
            for (keys, own), moves, fresh in zip(held, window.moves, entering.result(), strict=True)
        ]

    def renew(self) -> None:
        """Rows that were fetched for the next window have not changed since: they stay."""

    def let_go(self, steps: int) -> PushSummary:
        """Give back every row, those fetched for the next window too. Which rows they are, and their slots, stay."""
        self._carrier.settle()
        held = [held.held() for held in self._groups]
        self._client.give_back([keys for keys, _ in held], [rows for _, rows in held], window=self._window)
        if self._entering is not None:
            window, entering = self._entering
            fresh = [arrived.rows for arrived in entering.result()]
            self._client.give_back([moves.enter for moves in window.moves], fresh, window=window.index)
        return self._settled()

    def take_again(self) -> None:
        keys = [held.held_keys() for held in self._groups]
        rows = self._client.lease(keys, window=self._window).result()
        for held, own in zip(self._groups, rows, strict=True):
            held.put_back(own)
        if self._entering is not None:
            self._ask(self._entering[0])

    def finish(self) -> PushSummary:
        while not self._ended:
            self._advance()
        self._carrier.settle()
        self._carrier.close()
        return self._settled()

    def _advance(self) -> None:
        """Cross the boundary to the next window, and tell what it cost."""
        if self._entering is None:
            self._ask(self._next_window())
        started_t, before_t = time.perf_counter(), self._crossed_t
        self._cross()
        self._crossed_t = time.perf_counter()
        if before_t is not None:
            self._windows.crossed((self._crossed_t - started_t) / (self._crossed_t - before_t))

    def _cross(self) -> None:
        """See the module's docstring."""
        assert self._entering is not None
        window, entering = self._entering
        self._entering = None
        if window.flush is not None or any(len(moves.leave) for moves in window.moves):
            leaving = [held.take_out(moves) for held, moves in zip(self._groups, window.moves, strict=True)]
            keys = [moves.leave for moves in window.moves]
            self._carrier.send(
                leaving,
                lambda rows: self._client.give_back(keys, rows, window=window.index, flush=window.flush),
            )
        if window.flush is not None:
            self._meet()
        with self._clock.span(Span.WAIT_SERVER):
            arrived = entering.result()
        for held, moves, fresh in zip(self._groups, window.moves, arrived, strict=True):
            held.put_in(moves, fresh)
        self._routes = {spec.step: route for spec, route in zip(window.specs, window.routes, strict=True)}
        self._ended = window.is_last
        self._window = window.index

    def _meet(self) -> None:
        """Go on when every tower's rows are with the servers, where a day begins: no row is asked for before that."""
        self._carrier.settle()
        self._client.settle()
        with self._clock.span(Span.WAIT_TOWERS):
            self._towers.sum_(torch.zeros(1))

    def _ask_ahead(self) -> None:
        """Ask for the rows of the next window as soon as it is known, without waiting for it."""
        if self._entering is None and not self._ended:
            window = self._windows.window_here()
            if window is not None:
                self._ask(window)  # of a flush: nothing enters

    def _next_window(self) -> TowerWindow:
        with self._clock.span(Span.WAIT_SEQUENCER):
            window = self._windows.next_window()
        if window is None:
            raise ProtocolError("the windows ended without one that gives every row back")
        return window

    def _ask(self, window: TowerWindow) -> None:
        keys = [moves.enter for moves in window.moves]
        rows = self._carrier.bring(lambda clock: self._client.lease(keys, window=window.index, clock=clock))
        self._entering = (window, rows)

    def _collect(self, held: HeldGroup, route: StepRoute) -> Tensor:
        """The weights of a batch's unique rows, from all owners."""
        served = held.weights(route.serve_slots)
        if self._towers.size == 1:
            return served
        return held.placed(self._swap(served, route.serve_counts, route.need_counts), route.order)

    def _merge(self, held: HeldGroup, route: StepRoute, gradients: Tensor) -> Tensor:
        """Gradients of this owner's rows, over towers, in tower order, float32 [M, E]."""
        if self._towers.size == 1:
            return gradients
        received = self._swap(held.picked(gradients, route.order), route.need_counts, route.serve_counts)
        return held.merged(received, route.merged_local, len(route.merged_slots))

    def _swap(self, rows: Tensor, send_counts: np.ndarray, receive_counts: np.ndarray) -> Tensor:
        kept = int(send_counts[self._towers.rank]) * rows.shape[1] * rows.element_size()
        self._traffic.swapped += rows.nbytes - kept
        with self._clock.span(Span.WAIT_TOWERS):
            return self._towers.exchange(rows, send_counts.tolist(), receive_counts.tolist())

    def _settled(self) -> PushSummary:
        """Wait for the servers, and for what has been rejected."""
        told, settled = self._told(wait=True), self._client.settle()
        return PushSummary(rejected=told.rejected + settled.rejected, examples=told.examples + settled.examples)

    def _told(self, *, wait: bool) -> PushSummary:
        """Rejections not told of before. wait: for all of them; else those known by now, in the order of updates."""
        rejected = 0
        examples: list[RejectedGradient] = []
        while self._judged and (wait or self._judged[0].rejections.here()):
            judged = self._judged.popleft()
            bad = judged.rejections.result()
            rejected += len(bad)
            if len(bad):
                examples += self._named(judged, bad)
        return PushSummary(rejected=rejected, examples=tuple(examples[:_MAX_EXAMPLES]))

    def _named(self, judged: _Judged, bad: I32) -> list[RejectedGradient]:
        """Table and key of rejected rows, where they are in this tower's own batch."""
        names = {table.index: table.name for table in self._job.groups[judged.group].tables}
        places = bad if self._towers.size == 1 else self._places(judged.route, bad)
        mine = judged.unique[places[:_MAX_EXAMPLES]]
        return [
            RejectedGradient(step=judged.step, table=names[table], key=key)
            for table, key in zip(mine.tables.tolist(), mine.keys.tolist(), strict=True)
        ]

    def _places(self, route: StepRoute, bad: I32) -> I32:
        """Where rejected rows stand among this tower's own batch's."""
        own = route.order[np.repeat(np.arange(len(route.need_counts)), route.need_counts) == self._towers.rank]
        begin = int(route.serve_counts[: self._towers.rank].sum())
        places: I32 = own[np.isin(route.merged_local[begin : begin + len(own)], bad)]
        return places


def _held(
    job: JobSpec, *, copies: Copies | None, background: bool, clock: SpanClock
) -> tuple[list[HeldGroup], Carrier]:
    """What holds the rows of each group, and what carries them."""
    if copies is None:
        on_host: list[HeldGroup] = [LeasedGroup(spec, clock=job.clock) for spec in job.groups]
        return on_host, StepCarrier([Arrived] * len(on_host), clock=clock)
    groups = [DeviceGroup(spec, copies=copies, clock=job.clock) for spec in job.groups]
    arrive = [group.bring for group in groups]
    return [*groups], LaneCarrier(arrive) if background else StepCarrier(arrive, clock=clock)
