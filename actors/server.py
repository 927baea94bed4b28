"""A server as an actor: pulls and pushes run one after the other in one lane; it never blocks."""

from __future__ import annotations

import os
import time
from pathlib import Path

import ray

from actors.context import RunContext
from hetero.checkpoint.manifest import Part
from hetero.checkpoint.rows import read_rows, write_rows
from hetero.exchange.messages import (
    DensePart,
    DensePullReply,
    DensePushRequest,
    DifferencesReply,
    DifferencesRequest,
    LeaseReply,
    LeaseRequest,
    PullReply,
    PullRequest,
    PushReply,
    PushRequest,
    ReturnRequest,
)
from hetero.exchange.server import RowServer, ServerState
from hetero.hardware.probe import peak_rss_bytes
from hetero.loops.run import RoleReport
from hetero.observe.spans import Span, SpanClock


class ServerActor:
    """Shell of `hetero.exchange.server.RowServer`."""

    def __init__(self, context: RunContext, index: int) -> None:
        context.enter()
        self._job = context.job
        self._index = index
        self._server = RowServer(context.job)
        self._clock = SpanClock()

    @ray.method(concurrency_group="control")
    def ping(self) -> int:
        """Answer, with the number of this process."""
        return os.getpid()

    def pull(self, request: PullRequest) -> PullReply:
        with self._clock.span(Span.ROWS_PULL):
            return self._server.pull(request)

    def push(self, request: PushRequest) -> PushReply:
        with self._clock.span(Span.ROWS_PUSH):
            return self._server.push(request)

    def lease(self, request: LeaseRequest) -> LeaseReply:
        with self._clock.span(Span.ROWS_PULL):
            return self._server.lease(request)

    def give_back(self, request: ReturnRequest) -> None:
        with self._clock.span(Span.ROWS_PUSH):
            self._server.give_back(request)

    def open_dense(self, part: DensePart) -> None:
        self._server.open_dense(part)

    def pull_dense(self) -> DensePullReply:
        with self._clock.span(Span.ROWS_PULL):
            return self._server.pull_dense()

    def push_dense(self, request: DensePushRequest) -> None:
        with self._clock.span(Span.ROWS_PUSH):
            self._server.push_dense(request)

    def exchange(self, request: DifferencesRequest) -> DifferencesReply:
        with self._clock.span(Span.ROWS_PUSH):
            return self._server.exchange(request)

    def state(self) -> ServerState:
        return self._server.state()

    def save(self, folder: Path) -> tuple[Part, ...]:
        with self._clock.span(Span.SNAPSHOT_WRITE):
            return write_rows(self._server.stores, self._job, folder=folder, server=self._index)

    def load(self, folder: Path) -> int:
        self._server.forget_towers()
        return read_rows(
            self._server.stores,
            self._job,
            folder=folder,
            server=self._index,
            servers=self._job.servers.count,
        )

    def close(self) -> None:
        """Delete what the server has on disk; no call comes after it."""
        self._server.close()

    def role_report(self) -> RoleReport:
        return RoleReport(
            name=f"server/{self._index}",
            spans=self._clock.totals(),
            peak_rss_bytes=peak_rss_bytes(),
            cpu_s=time.process_time(),
        )
