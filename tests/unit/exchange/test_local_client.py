"""The client over servers in this process passes the contract of row clients."""

from __future__ import annotations

import pytest

from hetero.exchange.client import LocalServer, RowClient, ShardedRowClient
from hetero.exchange.server import RowServer
from hetero.observe.spans import SpanClock
from hetero.records import JobSpec
from tests.support.row_client import MakeClient, RowClientContract


class TestLocalClient(RowClientContract):
    @pytest.fixture
    def make_client(self) -> MakeClient:
        def make(job: JobSpec) -> RowClient:
            servers = [LocalServer(RowServer(job)) for _ in range(job.servers.count)]
            return ShardedRowClient(job, tower=0, servers=servers, clock=SpanClock())

        return make
