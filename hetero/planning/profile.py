"""A job's tasks on kinds of node, from counts of bytes, rows and FLOPs and the rates of one core and of a device.

Stands in until the job is measured on the nodes: rates are those of this project's kernels on one core of an AMD EPYC
(benchmarks/results/2026-11-30-kernels.md) or assumed, and say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hetero.hardware.devices import device
from hetero.planning.tasks import Chain, Role, Task, Usage
from hetero.records.cluster import ClusterSpec, NodeKind

_BYTES_OF_KEY = 8
_BYTES_OF_FLOAT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one sample asks for. file_bytes: as stored. keys: occurrences; distinct: share of them left by dedup.

    row_floats: of all lookups' rows together, state included; pooled_floats: what the tower gets of them. tower_flops:
    forward and backward. rows, row_bytes: of all tables, 0 rows where the number is not known.
    """

    file_bytes: float
    dense: int
    keys: float
    distinct: float
    row_floats: float
    pooled_floats: float
    tower_flops: float
    rows: int = 0
    row_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Of one core, unless said otherwise.

    read, parse: assumed. dedup, pull, push: measured at dim 16, rows of 68 bytes. cpu_flops: of the tower's forward and
    backward in fp32, assumed. device_share: achieved / data sheet rate of an accelerator in half precision, assumed.
    feed: bytes that a host's core hands its accelerator, assumed.
    """

    read_bytes_per_s: float = 1e9
    parse_bytes_per_s: float = 3e8
    dedup_keys_per_s: float = 1.09e8
    pull_bytes_per_s: float = 12.06e6 * 68
    push_bytes_per_s: float = 5.75e6 * 68
    cpu_flops: float = 4e10
    device_share: float = 0.2
    feed_bytes_per_s: float = 4e9


POOLED_ON_TOWER = "pooled on tower"
POOLED_ON_SERVER = "pooled on server"


def chain_of(
    work: Work,
    *,
    cluster: ClusterSpec,
    pooling: str = POOLED_ON_TOWER,
    rates: Rates | None = None,
    measured: Mapping[str, Mapping[str, Usage]] | None = None,
) -> Chain:
    """The tasks of a job. pooling: where multi-valued lookups become one vector. measured: seconds by task and kind of
    node, which stand instead of what the rates give."""
    rates, measured = rates or Rates(), measured or {}
    rows = work.row_floats * _BYTES_OF_FLOAT * work.distinct
    pooled = work.pooled_floats * _BYTES_OF_FLOAT
    to_tower = pooled if pooling == POOLED_ON_SERVER else rows
    parsed = work.keys * _BYTES_OF_KEY + work.dense * _BYTES_OF_FLOAT
    lookup_s = rows / rates.pull_bytes_per_s + rows / rates.push_bytes_per_s
    pool_s = work.row_floats * _BYTES_OF_FLOAT / rates.pull_bytes_per_s
    on_server = pool_s if pooling == POOLED_ON_SERVER else 0.0

    def task(name: str, role: Role, core_s: float, *, output: float, begins: bool, memory: float = 0.0) -> Task:
        usage = {kind.name: Usage(cpu_s=core_s / kind.cores) for kind in cluster.kinds if kind.cores > 0}
        return Task(
            name=name,
            role=role,
            usage={**usage, **measured.get(name, {})},
            output_bytes=output,
            memory_bytes=memory,
            begins=begins,
        )

    reader = (
        task("read", Role.READER, work.file_bytes / rates.read_bytes_per_s, output=work.file_bytes, begins=True),
        task("parse", Role.READER, work.file_bytes / rates.parse_bytes_per_s, output=parsed, begins=False),
        task(
            "dedup",
            Role.READER,
            work.keys / rates.dedup_keys_per_s,
            output=work.keys * work.distinct * _BYTES_OF_KEY,
            begins=False,
        ),
    )
    server = task(
        "lookup",
        Role.SERVER,
        lookup_s + on_server,
        output=to_tower,
        begins=True,
        memory=work.rows * work.row_bytes,
    )
    usage = {kind.name: _tower(work, kind, rates, fed=to_tower, pool_s=pool_s - on_server) for kind in cluster.kinds}
    tower = Task(name="tower", role=Role.TOWER, usage={**usage, **measured.get("tower", {})})
    return Chain(name=pooling, tasks=(*reader, server, tower))


def _tower(work: Work, kind: NodeKind, rates: Rates, *, fed: float, pool_s: float) -> Usage:
    if not kind.accelerators:
        return Usage(cpu_s=(work.tower_flops / rates.cpu_flops + pool_s) / kind.cores)
    flops = kind.accelerators * device(kind.accelerator).half_flops * rates.device_share
    return Usage(cpu_s=fed / rates.feed_bytes_per_s / kind.cores, device_s=work.tower_flops / flops)
