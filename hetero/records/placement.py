"""Where a job's roles are, and how a batch is divided among its towers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """Roles that share one node, in the order of their numbers over all nodes. labels: that the node must have.

    resources: reserved on it by Ray's names for them, CPU among them. tower_threads: instead of those of the role.
    """

    labels: Mapping[str, str]
    resources: Mapping[str, float]
    readers: int = 0
    servers: int = 0
    towers: int = 0
    tower_threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesFrom:
    """From step `step` on tower t trains `parts[t]` of every `sum(parts)` rows of a batch."""

    step: int
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSpec:
    """How a batch is divided among towers. first: parts to begin with, empty for equal ones.

    measured: whether shares follow the towers' speeds. replay: changes that an earlier run logged, by ascending step,
    which are made again at the same steps.
    """

    first: tuple[int, ...] = ()
    measured: bool = False
    replay: tuple[SharesFrom, ...] = ()
