"""From a row to its bucket to the server that holds it: the only routing there is, for pulls, pushes and files alike.

A row's bucket is the top bits of `mix64(key ^ mix64(table seed))`, so that doubling the number of buckets splits each
in two. Servers own sets of buckets, numbered 0 to n - 1. When their number changes as few buckets move as can, and the
version of the routing goes up: every call of a tower carries it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hetero.errors import JobError
from hetero.kernels.mix import mix64_reference
from hetero.kernels.partition import owners_kernel, partition_kernel
from hetero.records import F32, I32, I64, U64, GroupSpec, KeySet


@dataclass(frozen=True, slots=True)
class Routed:
    """One server's part of a KeySet. positions: int32, where its rows stand in the whole, ascending."""

    positions: I32
    keys: KeySet

    def rows(self, whole: F32) -> F32:
        """Its rows of those of the whole KeySet, float32 [U, any]: a copy, or `whole` itself where all are its own."""
        return whole if len(self.positions) == len(whole) else whole[self.positions]


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Who holds what from one change of the servers to the next. version: 0 at the start of a run. owners: server of
    each bucket, int32 [buckets]."""

    version: int
    owners: I32

    @staticmethod
    def first(*, buckets: int, servers: int) -> Routing:
        """At the start of a run. Raises JobError, see `initial_owners`."""
        return Routing(version=0, owners=initial_owners(buckets, servers))

    @property
    def servers(self) -> int:
        """How many servers there are."""
        return int(self.owners.max()) + 1

    def resized(self, servers: int) -> Routing:
        """The next routing, of another number of servers: equal up to one bucket, and as few move as can.

        Servers that stay keep their lowest buckets; what is free goes, in order, to those that lack some. With fewer
        servers those with the highest numbers leave. Raises JobError for none, or for more than there are buckets.
        """
        if not 1 <= servers <= len(self.owners):
            raise JobError(f"{servers} servers for {len(self.owners)} buckets; take 1 to {len(self.owners)}")
        held = np.bincount(self.owners, minlength=servers)[:servers]
        quota = np.full(servers, len(self.owners) // servers)
        quota[np.argsort(-held, kind="stable")[: len(self.owners) % servers]] += 1  # those with most keep one more
        owners = self.owners.copy()
        owners[self.owners >= servers] = -1
        for server in range(servers):
            owners[np.flatnonzero(self.owners == server)[quota[server] :]] = -1
        lacking = quota - np.bincount(owners[owners >= 0], minlength=servers)
        owners[owners < 0] = np.repeat(np.arange(servers, dtype=np.int32), lacking)
        return Routing(version=self.version + 1, owners=owners)


def initial_owners(buckets: int, servers: int) -> I32:
    """Owner of each bucket at the start of a job, int32 [buckets]: contiguous runs, equal up to one bucket.

    Raises JobError when there are more servers than buckets or `buckets` is no power of two.
    """
    if buckets & (buckets - 1) or buckets < 2:
        raise JobError(f"buckets: {buckets} is no power of two above 1")
    if servers > buckets:
        raise JobError(f"roles.servers: {servers} servers for {buckets} buckets; at most one server a bucket")
    return (np.arange(buckets, dtype=np.int64) * servers // buckets).astype(np.int32)


def mixed_seeds(groups: Sequence[GroupSpec]) -> U64:
    """mix64 of every table's seed, uint64, by table index."""
    seeds = {table.index: table.seed for group in groups for table in group.tables}
    dense = np.zeros(max(seeds, default=-1) + 1, np.uint64)
    for index, seed in seeds.items():
        dense[index] = seed
    return mix64_reference(dense)


def bucket_of(keys: KeySet, *, seeds: U64, buckets: int) -> I64:
    """Bucket of each row, int64 [U]. seeds: from `mixed_seeds`."""
    mixed = mix64_reference(keys.keys ^ seeds[keys.tables])
    return (mixed >> np.uint64(65 - buckets.bit_length())).astype(np.int64)


def writable(owners: I32) -> I32:
    """Owners as kernels take them. Those that came from another process are read-only: compiled apart, for seconds."""
    return np.require(owners, np.int32, ("C", "A", "W"))


class Router:
    """Splits KeySets by the server that holds their rows. owners: int32 [buckets]."""

    def __init__(self, groups: Sequence[GroupSpec], buckets: int, owners: I32) -> None:
        self._seeds = mixed_seeds(groups)
        self._shift = np.uint64(65 - buckets.bit_length())
        self._owners = writable(owners)
        self._servers = int(owners.max()) + 1

    def route(self, keys: KeySet) -> tuple[Routed, ...]:
        """One part per server, each in the order of `keys`."""
        count = len(keys)
        if self._servers == 1:
            return (Routed(np.arange(count, dtype=np.int32), keys),)
        owners = np.empty(count, np.int32)
        owners_kernel(keys.tables, keys.keys, self._seeds, self._shift, self._owners, owners)
        ends = np.cumsum(np.bincount(owners, minlength=self._servers))
        starts = np.concatenate([[0], ends[:-1]])
        positions, tables, values = np.empty(count, np.int32), np.empty(count, np.uint16), np.empty(count, np.uint64)
        partition_kernel(keys.tables, keys.keys, owners, starts.copy(), positions, tables, values)
        return tuple(
            Routed(positions[start:end], KeySet(tables[start:end], values[start:end]))
            for start, end in zip(starts, ends, strict=True)
        )
