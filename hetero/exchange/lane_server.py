"""A server in this process with a thread of its own: leases and returns go on beside the tower's steps.

So reading from SSD for the next window, and taking back the rows of the one before, overlap with training in one
process too. Calls run one after the other, in the order they were made.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

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


@dataclass(frozen=True, slots=True)
class _UnderWay(Generic[T]):
    """An answer that the server's thread is about to give."""

    answer: Future[T]

    def result(self) -> T:
        return self.answer.result()


class LaneServer:
    """A ServerHandle. Whoever makes it closes it, before the server."""

    def __init__(self, server: RowServer) -> None:
        self._local = LocalServer(server)
        self._server = server
        self._lane = ThreadPoolExecutor(1, thread_name_prefix="server")

    def pull(self, request: PullRequest) -> Pending[PullReply]:
        return _UnderWay(self._lane.submit(self._server.pull, request))

    def push(self, request: PushRequest) -> Pending[PushReply]:
        return _UnderWay(self._lane.submit(self._server.push, request))

    def lease(self, request: LeaseRequest) -> Pending[LeaseReply]:
        return _UnderWay(self._lane.submit(self._server.lease, request))

    def give_back(self, request: ReturnRequest) -> Pending[None]:
        return _UnderWay(self._lane.submit(self._server.give_back, request))

    def note_leased(self, values: LeasedValues) -> Pending[None]:
        return _UnderWay(self._lane.submit(self._server.note_leased, values))

    def open_dense(self, part: DensePart) -> Pending[None]:
        return self._lane.submit(self._local.open_dense, part).result()

    def pull_dense(self) -> Pending[DensePullReply]:
        return self._lane.submit(self._local.pull_dense).result()

    def dense_state(self) -> Pending[dict[str, np.ndarray]]:
        return self._lane.submit(self._local.dense_state).result()

    def push_dense(self, request: DensePushRequest) -> Pending[None]:
        return self._lane.submit(self._local.push_dense, request).result()

    def exchange(self, request: DifferencesRequest) -> Pending[DifferencesReply]:
        return self._lane.submit(self._local.exchange, request).result()

    def wait(self) -> None:
        """Return when everything asked so far is done."""
        self._lane.submit(int).result()

    def close(self) -> None:
        """End the thread, after what was asked so far."""
        self._lane.shutdown(wait=True)
