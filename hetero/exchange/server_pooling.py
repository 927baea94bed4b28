"""Multi-valued lookups pooled where the rows are: a server sends sums of rows instead of rows.

                 pooled on the tower                     pooled on the servers
    pull         rows [U, E] of unique keys              sums [bags, E] over each server's rows, added up by the tower
    push         gradients [U, E] of unique keys         gradients [bags, E], which servers deal out to their rows
    bags go      nowhere                                 with the keys, as positions among each server's

A mean is a sum that the tower divides, and its gradient likewise. With one server all bits are those of pooling on the
tower; with several a bag's sum is one of sums, in the order of servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hetero.exchange.messages import PushRequest
from hetero.kernels.pooling import bag_count, bag_lengths, pool_backward, pool_forward
from hetero.keys.routing import Routed
from hetero.records import F32, I64, Bags, Batch, GroupBatch, JobSpec, KeySet, Pooling

_SUMS = np.zeros(1, np.bool_)


def pooled_groups(job: JobSpec) -> tuple[bool, ...]:
    """Which groups a job's servers pool: those with a lookup of lists, without sequences and without policies, which
    count every key's uses."""
    if not job.pool_on_servers:
        return (False,) * len(job.groups)
    return tuple(can_be_pooled(job, number) for number in range(len(job.groups)))


def can_be_pooled(job: JobSpec, group: int) -> bool:
    """Whether servers could pool a group, and have something to pool."""
    lookups = [lookup for lookup in job.lookups if lookup.group == group]
    spec = job.groups[group]
    return (
        any(job.train.sparse[lookup.feature].is_list for lookup in lookups)
        and all(lookup.pooling is not Pooling.NONE for lookup in lookups)
        and spec.admission is None
        and spec.eviction is None
    )


def shown(batch: Batch, groups: Sequence[bool]) -> Batch:
    """The batch as a tower computes on it that gets bags instead of rows: every bag holds one row, its own."""
    if not any(groups):
        return batch
    return replace(
        batch,
        groups=tuple(
            _each_its_own(bag_count(group.pooled)) if is_pooled else group
            for group, is_pooled in zip(batch.groups, groups, strict=True)
        ),
    )


def bags_of(batch: Batch, groups: Sequence[bool]) -> tuple[Bags | None, ...]:
    """What servers are asked to pool, per group; None where they send rows."""
    return tuple(group.pooled if is_pooled else None for group, is_pooled in zip(batch.groups, groups, strict=True))


def divisors(batch: Batch, *, mean: Sequence[np.ndarray], groups: Sequence[bool]) -> tuple[F32 | None, ...]:
    """What the sums of a group's bags are divided by, float32 [bags, 1]: positions of means, else 1; None for rows.

    mean: bool [F] per group, as in `GroupLayout`.
    """
    found: list[F32 | None] = []
    for group, is_mean, is_pooled in zip(batch.groups, mean, groups, strict=True):
        if not is_pooled:
            found.append(None)
            continue
        lengths = bag_lengths(group.pooled)
        means = np.tile(is_mean, len(lengths) // max(len(is_mean), 1))
        found.append(np.where(means, np.maximum(lengths, 1), 1).astype(np.float32)[:, None])
    return tuple(found)


def parts_of_bags(
    bags: Sequence[Bags | None], routed: Sequence[Sequence[Routed]], *, servers: int
) -> list[tuple[Bags | None, ...]]:
    """Per server, per group: the bags with the positions that are that server's, among its own keys."""
    if not any(each is not None for each in bags):
        return [()] * servers
    of_groups = [
        [None] * servers if own is None else _split(own, parts) for own, parts in zip(bags, routed, strict=True)
    ]
    return [tuple(group[server] for group in of_groups) for server in range(servers)]


def bytes_of_bags(bags: Sequence[Bags | None]) -> int:
    """Bytes of the arrays."""
    return sum(
        array.nbytes
        for own in bags
        if own is not None
        for array in (own.local, own.offsets, own.weights)
        if array is not None
    )


def pooled(rows: Sequence[F32], bags: Sequence[Bags | None]) -> tuple[F32, ...]:
    """Sums where there are bags, rows where there are none."""
    if not bags:
        return tuple(rows)
    return tuple(
        own if wanted is None else pool_forward(own, wanted, mean=_SUMS) for own, wanted in zip(rows, bags, strict=True)
    )


def unpooled(request: PushRequest) -> PushRequest:
    """The same push with gradients of rows, each the sum of its bags' in order of occurrence."""
    if not request.bags:
        return request
    gradients = tuple(
        own if bags is None else pool_backward(np.array(own), bags, mean=_SUMS, unique=len(keys))
        for own, bags, keys in zip(request.gradients, request.bags, request.keys, strict=True)
    )
    return replace(request, gradients=gradients, bags=())


def _each_its_own(bags: int) -> GroupBatch:
    """Bags that hold one row each, whose keys nobody asks for."""
    keys = KeySet(np.zeros(bags, np.uint16), np.zeros(bags, np.uint64))
    return GroupBatch(unique=keys, pooled=Bags(np.arange(bags, dtype=np.int32)))


def _split(bags: Bags, parts: Sequence[Routed]) -> list[Bags | None]:
    if len(parts) == 1:
        return [bags]
    unique = sum(len(part.positions) for part in parts)
    owner, own_position = np.empty(unique, np.int32), np.empty(unique, np.int32)
    for server, part in enumerate(parts):
        owner[part.positions] = server
        own_position[part.positions] = np.arange(len(part.positions), dtype=np.int32)
    owners = owner[bags.local]
    lengths = bag_lengths(bags)
    bag_of = np.repeat(np.arange(len(lengths)), lengths)
    return [_of_server(bags, own_position, owners == server, bag_of, len(lengths)) for server in range(len(parts))]


def _of_server(bags: Bags, own_position: np.ndarray, mine: np.ndarray, bag_of: I64, count: int) -> Bags:
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(bag_of[mine], minlength=count), out=offsets[1:])
    return Bags(
        own_position[bags.local[mine]],
        offsets,
        None if bags.weights is None else np.ascontiguousarray(bags.weights[mine]),
    )
