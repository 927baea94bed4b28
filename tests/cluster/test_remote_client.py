"""The client over server actors passes the contract of row clients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from actors.clients import RemoteServer
from actors.context import RunContext
from actors.group import ActorGroup
from actors.naming import Role
from hetero.exchange.client import RowClient, ShardedRowClient
from hetero.observe.spans import SpanClock
from hetero.records import JobSpec
from tests.support.row_client import MakeClient, RowClientContract

_NUMBERS = itertools.count()


class TestRemoteClient(RowClientContract):
    @pytest.fixture
    def make_client(self) -> Iterator[MakeClient]:
        groups: list[ActorGroup] = []

        def make(job: JobSpec) -> RowClient:
            group = ActorGroup(RunContext(run=f"contract-{next(_NUMBERS)}", job=job), roles=[Role.SERVER])
            groups.append(group)
            servers = [RemoteServer(group.peer(member)) for member in group.of(Role.SERVER)]
            return ShardedRowClient(job, tower=0, servers=servers, clock=SpanClock())

        yield make
        for group in groups:
            group.close()
