"""What a run of tasks needs as one stage on one kind of node: seconds, bytes, memory, and nodes for a throughput.

With n nodes a stage takes max(serial + parallel / n, bytes / (n x network)) seconds a sample (Amdahl and overlap, as in
HeterPS, 2111.10635); memory asks for so many nodes at least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from hetero.planning.tasks import Chain
from hetero.records.arrays import F64, I64
from hetero.records.cluster import ClusterSpec

NEVER = np.iinfo(np.int64).max // 4
"""Nodes of a stage that no number of nodes can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Tasks [start, stop) on nodes of kind number `kind`."""

    start: int
    stop: int
    kind: int


@dataclass(frozen=True, slots=True)
class Segments:
    """All segments of a chain on a cluster. Arrays are [kinds, starts, stops]; P tasks have stops 0 to P.

    Entries that cannot be a stage have infinite `serial_s`.
    """

    chain: Chain
    cluster: ClusterSpec
    serial_s: F64 = field(init=False)
    shared_s: F64 = field(init=False)
    network_s: F64 = field(init=False)
    least_nodes: I64 = field(init=False)

    def __post_init__(self) -> None:
        parts = [_of_kind(self.chain, self.cluster, number) for number in range(len(self.cluster.kinds))]
        serial, shared, network, least = (np.stack(arrays) for arrays in zip(*parts, strict=True))
        for name, value in (("serial_s", serial), ("shared_s", shared), ("network_s", network)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "least_nodes", least)

    def nodes_for(self, throughput: float) -> I64:
        """int64 [kinds, starts, stops]: the fewest nodes of each segment that reach a throughput, or NEVER."""
        budget = 1.0 / throughput
        with np.errstate(divide="ignore", invalid="ignore"):
            computing = self.shared_s / (budget - self.serial_s)
            moving = self.network_s / budget
            need = np.maximum(computing, moving)
        possible = np.isfinite(self.serial_s) & ((self.serial_s < budget) | (self.shared_s == 0)) & np.isfinite(need)
        # A count that is whole but for rounding is that whole count: its throughput is checked by `throughput`.
        nodes = np.where(possible, np.ceil(np.where(possible, need, 0.0) * (1 - 1e-12)), NEVER)
        return np.minimum(np.maximum(nodes, self.least_nodes), NEVER).astype(np.int64)

    def throughput(self, segment: Segment, nodes: int) -> float:
        """Samples a second of a segment on so many nodes."""
        at = segment.kind, segment.start, segment.stop
        seconds = max(self.serial_s[at] + self.shared_s[at] / nodes, self.network_s[at] / nodes)
        return math.inf if seconds == 0 else float(1.0 / seconds)


def _of_kind(chain: Chain, cluster: ClusterSpec, number: int) -> tuple[F64, F64, F64, I64]:
    """serial, shared, network seconds a sample and least nodes, each [starts, stops], of one kind."""
    kind, tasks, count = cluster.kinds[number], chain.tasks, len(chain.tasks)
    usages = [task.usage.get(kind.name) for task in tasks]
    able = [usage is not None for usage in usages]
    cpu, device = (
        np.array([0.0 if usage is None else getattr(usage, name) for usage in usages]) for name in ("cpu_s", "device_s")
    )
    serial = np.array([1 - task.parallel for task in tasks])
    serial_s = _combined(cpu * serial, device * serial, chain.overlap)
    shared_s = _combined(cpu * (1 - serial), device * (1 - serial), chain.overlap)
    begins = np.array([task.begins for task in tasks] + [True])
    unable = _sums(np.array([0.0 if each else 1.0 for each in able])) > 0
    ends = np.arange(count + 1)[None, :] <= np.arange(count + 1)[:, None]
    serial_s[unable | ends | ~begins[:, None] | ~begins[None, :]] = np.inf
    output = np.array([task.output_bytes for task in tasks])
    received = np.concatenate([[0.0], output])[:, None]
    sent = np.concatenate([[0.0], output[:-1], [0.0]])[None, :]
    network_s = np.maximum(received, sent) / kind.network_bytes_per_s
    room = max(kind.memory_bytes + kind.ssd_bytes, 1)
    memory = _sums(np.array([task.memory_bytes for task in tasks]))
    least = np.maximum(1, np.ceil(np.maximum(memory, 0.0) / room)).astype(np.int64)
    return serial_s, shared_s, np.broadcast_to(network_s, serial_s.shape).copy(), least


def _combined(cpu: F64, device: F64, overlap: float) -> F64:
    """[starts, stops] seconds of runs of tasks, of CPU and device together."""
    cpu_s, device_s = _sums(cpu), _sums(device)
    seconds: F64 = np.maximum(cpu_s, device_s) + (1 - overlap) * np.minimum(cpu_s, device_s)
    return seconds


def _sums(values: F64) -> F64:
    """[starts, stops] of sums over [start, stop)."""
    until = np.concatenate([[0.0], np.cumsum(values)])
    sums: F64 = until[None, :] - until[:, None]
    return sums
