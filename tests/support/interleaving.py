"""Towers whose calls reach servers in an order the test chooses: every interleaving that real actors could show.

Every tower runs in a thread of its own until it waits; when all wait, one message is delivered, the first of some lane
(the calls of one tower to one server, which arrive in order). So a run is a function of the choices, and a run in which
nothing can be delivered while towers wait is a deadlock, which is reported.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from hetero.exchange.client import LocalServer
from hetero.exchange.messages import (
    DensePart,
    DensePullReply,
    DensePushRequest,
    DifferencesReply,
    DifferencesRequest,
    LeasedValues,
    LeaseReply,
    LeaseRequest,
    Pending,
    PullReply,
    PullRequest,
    PushReply,
    PushRequest,
    ReturnRequest,
)
from hetero.exchange.server import RowServer

T = TypeVar("T")
DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Message:
    """A call under way. what: its name; request: its argument, if any."""

    tower: int
    server: int
    what: str
    request: Any
    answer: Answer[Any]


class Answer(Generic[T]):
    """A Pending that is there once its message was delivered."""

    def __init__(self, schedule: Interleaving) -> None:
        self._schedule = schedule
        self.there = False
        self.value: Any = None

    def result(self) -> T:
        self._schedule.wait_until(lambda: self.there)
        if isinstance(self.value, Exception):
            raise self.value
        value: T = self.value
        return value


class Interleaving:
    """Runs towers against servers. choose: which of the lanes' first messages is delivered next."""

    def __init__(self, servers: Sequence[RowServer], *, choose: Callable[[Sequence[Message]], Message]) -> None:
        self._servers = [LocalServer(server) for server in servers]
        self._choose = choose
        self._news = threading.Condition()
        self._lanes: dict[tuple[int, int], deque[Message]] = {}
        self._waiting: dict[int, Callable[[], bool]] = {}
        self._running = 0
        self._sums: dict[int, int] = {}
        self.delivered: list[Message] = []

    def handles(self, tower: int) -> list[ScheduledServer]:
        """The servers as one tower sees them."""
        return [ScheduledServer(self, tower, number) for number in range(len(self._servers))]

    def send(self, tower: int, server: int, what: str, request: Any) -> Answer[Any]:
        message = Message(tower, server, what, request, Answer(self))
        with self._news:
            self._lanes.setdefault((tower, server), deque()).append(message)
        return message.answer

    def sum_over_towers(self, tower: int, towers: int) -> None:
        """Wait until every tower has come here as often."""
        with self._news:
            self._sums[tower] = here = self._sums.get(tower, 0) + 1
        self.wait_until(lambda: len(self._sums) == towers and min(self._sums.values()) >= here)

    def wait_until(self, ready: Callable[[], bool]) -> None:
        me = threading.get_ident()
        with self._news:
            self._waiting[me] = ready
            self._running -= 1
            self._news.notify_all()
            while me in self._waiting:
                assert self._news.wait(timeout=DEADLINE_S), "the scheduler is gone"

    def run(self, towers: Sequence[Callable[[], None]]) -> None:
        """Run towers to their end. Raises what a tower raises, AssertionError on a deadlock."""
        failures: list[BaseException] = []

        def one(tower: Callable[[], None]) -> None:
            try:
                tower()
            except BaseException as error:
                failures.append(error)
            with self._news:
                self._running -= 1
                self._news.notify_all()

        threads = [threading.Thread(target=one, args=(tower,), daemon=True) for tower in towers]
        self._running = len(threads)
        for thread in threads:
            thread.start()
        while self._turn(failures):
            pass
        if failures:
            raise failures[0]

    def _turn(self, failures: Sequence[BaseException]) -> bool:
        """Wake those whose wait is over, or deliver one message; False at the end."""
        with self._news:
            while self._running:
                assert self._news.wait(timeout=DEADLINE_S), "a tower neither waits nor ends"
            if failures:
                return False
            woken = [thread for thread, ready in self._waiting.items() if ready()]
            for thread in woken:
                del self._waiting[thread]
                self._running += 1
            if woken:
                self._news.notify_all()
                return True
            first = [lane[0] for lane in self._lanes.values() if lane]
            if not first:
                assert not self._waiting, "deadlock: towers wait, and no message is under way"
                return False
        self._deliver(self._choose(first))
        return True

    def _deliver(self, message: Message) -> None:
        self._lanes[message.tower, message.server].popleft()
        self.delivered.append(message)
        call = getattr(self._servers[message.server], message.what)
        try:
            message.answer.value = (call() if message.request is None else call(message.request)).result()
        except Exception as error:
            message.answer.value = error
        message.answer.there = True


class ScheduledServer:
    """A ServerHandle whose calls arrive when the schedule delivers them."""

    def __init__(self, schedule: Interleaving, tower: int, server: int) -> None:
        self._schedule = schedule
        self._tower = tower
        self._server = server

    def pull(self, request: PullRequest) -> Pending[PullReply]:
        return self._send("pull", request)

    def push(self, request: PushRequest) -> Pending[PushReply]:
        return self._send("push", request)

    def lease(self, request: LeaseRequest) -> Pending[LeaseReply]:
        return self._send("lease", request)

    def give_back(self, request: ReturnRequest) -> Pending[None]:
        return self._send("give_back", request)

    def note_leased(self, values: LeasedValues) -> Pending[None]:
        return self._send("note_leased", values)

    def open_dense(self, part: DensePart) -> Pending[None]:
        return self._send("open_dense", part)

    def pull_dense(self) -> Pending[DensePullReply]:
        return self._send("pull_dense", None)

    def dense_state(self) -> Pending[dict[str, np.ndarray]]:
        return self._send("dense_state", None)

    def push_dense(self, request: DensePushRequest) -> Pending[None]:
        return self._send("push_dense", request)

    def exchange(self, request: DifferencesRequest) -> Pending[DifferencesReply]:
        return self._send("exchange", request)

    def _send(self, what: str, request: Any) -> Answer[Any]:
        return self._schedule.send(self._tower, self._server, what, request)
