"""The cluster as facts: kinds of node, how many of each there may be, and what they cost. Nothing about a model."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Equal nodes. count: the most there may be. price: money an hour for one, in the cluster's currency.

    memory_bytes, ssd_bytes: what rows may take, of a node. network_bytes_per_s: one direction. accelerator: a name of
    hetero/hardware/devices.py, or empty. labels, resources: what a placement asks for to land on this kind.
    """

    name: str
    count: int
    price: float
    cores: float
    memory_bytes: int
    ssd_bytes: int = 0
    network_bytes_per_s: float = 1.25e9
    accelerator: str = ""
    accelerators: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    resources: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """What a job may run on."""

    name: str
    kinds: tuple[NodeKind, ...]

    def kind(self, name: str) -> NodeKind:
        return next(kind for kind in self.kinds if kind.name == name)
