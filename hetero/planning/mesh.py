"""Meshes of devices: degrees, the order of axes, and where the ranks of each axis lie."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from hetero.hardware.devices import Device, Link, device, link
from hetero.planning.collectives import Place
from hetero.records.cluster import NodeKind


class Axis(Enum):
    """What ranks along it divide: stages, batch (twice: without and with the model's state), matrices."""

    PIPELINE = "pp"
    DATA = "dp"
    SHARD = "shard"
    TENSOR = "tp"


DEFAULT_ORDER = (Axis.PIPELINE, Axis.DATA, Axis.SHARD, Axis.TENSOR)


INSIDE = "nvlink2"
"""Assumed between the accelerators of a node, of which cluster files say nothing."""
_NETWORK_LATENCY_S = 2e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGrid:
    """Equal machines of equal devices. inside: of each device to its neighbours; between: of each machine."""

    machines: int
    per_machine: int
    device: Device
    inside: Link
    between: Link

    @staticmethod
    def of(kind: NodeKind, nodes: int) -> DeviceGrid:
        """So many nodes of a kind with accelerators. Raises PlanError for an accelerator that is not known."""
        return DeviceGrid(
            machines=nodes,
            per_machine=kind.accelerators,
            device=device(kind.accelerator),
            inside=link(INSIDE),
            between=Link(name="network", latency_s=_NETWORK_LATENCY_S, bytes_per_s=kind.network_bytes_per_s),
        )

    @property
    def devices(self) -> int:
        return self.machines * self.per_machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Degrees of parallelism. order: of axes, the last has neighbouring ranks."""

    pp: int = 1
    dp: int = 1
    shard: int = 1
    tp: int = 1
    order: tuple[Axis, Axis, Axis, Axis] = DEFAULT_ORDER

    @property
    def size(self) -> int:
        return self.pp * self.dp * self.shard * self.tp

    @property
    def data_ways(self) -> int:
        """Different micro-batches trained at once."""
        return self.dp * self.shard

    def degree(self, axis: Axis) -> int:
        return int(getattr(self, axis.value))

    def stride(self, axis: Axis) -> int:
        """Distance of neighbouring ranks of an axis."""
        return math.prod(self.degree(later) for later in self.order[self.order.index(axis) + 1 :])

    @lru_cache(maxsize=1 << 14)  # noqa: B019 - frozen, and many plans share a mesh
    def place(self, axis: Axis, grid: DeviceGrid) -> Place | None:
        """Where a group along an axis lies; None when machines would hold unequal parts of it."""
        degree, stride, per_machine = self.degree(axis), self.stride(axis), grid.per_machine
        inside = min(degree, max(1, per_machine // stride))
        aligned = per_machine % stride == 0 if stride < per_machine else stride % per_machine == 0
        if degree > 1 and (not aligned or degree % inside or (per_machine // max(1, stride)) % inside):
            return None
        return Place(
            inside=inside,
            machines=degree // inside,
            inside_link=grid.inside,
            across_link=grid.between,
            sharing=max(1, min(per_machine, grid.devices) // inside),
        )

    def __str__(self) -> str:
        named = [f"{axis.value}{self.degree(axis)}" for axis in self.order if self.degree(axis) > 1]
        return " x ".join(named) or "1 device"


@lru_cache(maxsize=4096)
def even_split(layers: int, stages: int) -> tuple[int, ...]:
    """Blocks of each stage, as equal as can be; what is left over goes to the first ones, as the last has the head."""
    least, more = divmod(layers, stages)
    return tuple(least + (stage < more) for stage in range(stages))
