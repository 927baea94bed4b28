"""What a tower's step is made of in each mode: where rows come from, and where dense parameters are updated.

mode      rows                                           dense parameters
sync      pulled and pushed every step, or leased        summed over towers
bounded   pulled ahead within permits, pushed            summed over towers
async     pulled a step ahead, pushed                    on the servers
geo       copies of its own, exchanged every k steps     copies of its own, exchanged with the rows
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from hetero.exchange.client import ShardedRowClient
from hetero.exchange.dense_sides import DenseClient, DenseSide, ReplicatedDense, ServedDense
from hetero.exchange.geo_copies import GeoCopies
from hetero.exchange.messages import ServerHandle
from hetero.exchange.permits import Permits, PullsAhead, permits_of
from hetero.exchange.server_pooling import pooled_groups
from hetero.exchange.sources import PulledRows, RowSource, ServerPooledRows
from hetero.loops.protocols import BatchStream
from hetero.observe.spans import SpanClock
from hetero.parallel.dense import DenseUpdater
from hetero.parallel.group import SoleTower, TowerGroup
from hetero.records import JobSpec, Mode
from hetero.towers.embeddings import EmbeddingLayout

ASYNC_PERMITS = 2
"""Steps a tower has pulled and not finished in `async`: the one it trains, and the next, which comes meanwhile."""


def dense_side(
    job: JobSpec,
    *,
    tower: int,
    module: nn.Module,
    client: ShardedRowClient,
    servers: Sequence[ServerHandle],
    group: TowerGroup,
    clock: SpanClock,
) -> DenseSide:
    """The dense side of one tower. Raises JobError for an optimizer that does not exist."""
    if job.mode.joint:
        updater = DenseUpdater(module, job.tower, group=group, clock=clock)
        return ReplicatedDense(updater, module, towers=group.size, traffic=client.traffic)
    dense = DenseClient(module, tower=tower, servers=servers, clock=clock, traffic=client.traffic)
    if job.mode is Mode.ASYNC:
        return ServedDense(dense)
    own = DenseUpdater(module, job.tower, group=SoleTower(), clock=clock)
    return GeoCopies(job, client=client, dense=dense, updater=own)


def pulled_source(
    job: JobSpec, *, client: ShardedRowClient, dense: DenseSide, batches: BatchStream
) -> tuple[RowSource, BatchStream]:
    """Rows for training on `batches`, and the stream to train on, which asks for rows ahead where the mode does.

    Raises JobError when the job's staleness is too small for its towers.
    """
    several = job.towers.count > 1
    if isinstance(dense, GeoCopies):
        return dense, batches
    if job.mode is Mode.SYNC:
        groups = pooled_groups(job)
        if any(groups):
            mean = [group.mean for group in EmbeddingLayout.from_job(job).groups]
            return ServerPooledRows(client, towers=job.towers.count, groups=groups, mean=mean), batches
        return PulledRows(client, towers=job.towers.count), batches
    bounded = job.mode is Mode.BOUNDED
    permits = permits_of(staleness=job.staleness, towers=job.towers.count) if bounded else ASYNC_PERMITS
    ahead = PullsAhead(client, batches, permits=Permits(permits), joint=bounded and several)
    return ahead, ahead
