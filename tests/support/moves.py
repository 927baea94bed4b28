"""Rows of all servers of a run: each once, and with the server that the routing names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero.exchange.server import RowServer
from hetero.keys.routing import Routing, bucket_of, mixed_seeds
from hetero.records import JobSpec


def owned_rows(servers: Sequence[RowServer], routing: Routing, *, job: JobSpec) -> list[dict[tuple[int, int], bytes]]:
    """Every row by table and key, with its bits, per group. Fails for a row that two servers hold, or a wrong one."""
    assert len(servers) == routing.servers
    held: list[dict[tuple[int, int], bytes]] = [{} for _ in job.groups]
    seeds = mixed_seeds(job.groups)
    for number, server in enumerate(servers):
        for group, store in enumerate(server.stores):
            for keys, rows in store.scan():
                owners = routing.owners[bucket_of(keys, seeds=seeds, buckets=job.buckets)]
                np.testing.assert_array_equal(owners, number)
                for table, key, row in zip(keys.tables.tolist(), keys.keys.tolist(), rows, strict=True):
                    assert (table, key) not in held[group]
                    held[group][table, key] = row.tobytes()
    return held
