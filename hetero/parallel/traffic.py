"""What a step sends along each axis of the mesh, counted where the collectives are issued.

Bytes are those a rank sends by the ring algorithms (Thakur et al. 2005): of an all-reduce of S bytes over n ranks
2 (n - 1) / n S, of an all-gather of pieces of S (n - 1) S, of a reduce-scatter of S (n - 1) / n S; of a send S.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hetero.parallel.mesh import Mesh
from hetero.records.mesh import AXES

WORLD = "world"
"""Sums over all ranks: loss, gradient norm."""

_SENT: Mapping[str, Callable[[int, int], float]] = {
    "all_reduce": lambda size, ranks: 2 * (ranks - 1) / ranks * size,
    "allreduce_": lambda size, ranks: 2 * (ranks - 1) / ranks * size,
    "all_gather_into_tensor": lambda size, ranks: (ranks - 1) * size,
    "_allgather_base_": lambda size, ranks: (ranks - 1) * size,
    "reduce_scatter_tensor": lambda size, ranks: (ranks - 1) / ranks * size,
    "_reduce_scatter_base_": lambda size, ranks: (ranks - 1) / ranks * size,
    "all_to_all_single": lambda size, ranks: (ranks - 1) / ranks * size,
    "send": lambda size, ranks: size,
}
_OUTPUT_FIRST = frozenset({"_allgather_base_", "_reduce_scatter_base_"})


@dataclass(slots=True)
class Traffic:
    """By axis: bytes a rank sends, and collectives it takes part in."""

    sent_bytes: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)

    def add(self, axis: str, sent: float) -> None:
        self.sent_bytes[axis] = self.sent_bytes.get(axis, 0.0) + sent
        self.calls[axis] = self.calls.get(axis, 0) + 1


class TrafficMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts collectives while it is entered; for a step now and then, since every operation passes through it."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.traffic = Traffic()
        self._groups: dict[str, tuple[str, int]] = {}
        if dist.group.WORLD is not None:
            self._groups[dist.group.WORLD.group_name] = WORLD, mesh.size
        for axis in AXES:
            if getattr(mesh.spec, axis) > 1:
                self._groups[mesh.group(axis).group_name] = axis, getattr(mesh.spec, axis)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(kind is DTensor for kind in types):
            return NotImplemented  # its own operations pass here with what each rank holds
        result = func(*args, **(kwargs or {}))
        space, _, name = func._schema.name.partition("::")
        if space in ("c10d", "_c10d_functional") and name in _SENT:
            self._note(name, [*args, *(kwargs or {}).values()])
        return result

    def _note(self, name: str, arguments: list[Any]) -> None:
        group = next((found for argument in arguments if (found := self._groups.get(_group_name(argument)))), None)
        if group is None:
            return
        axis, ranks = group
        tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
        given = tensors[1] if name in _OUTPUT_FIRST else tensors[0]
        self.traffic.add(axis, _SENT[name](given.numel() * given.element_size(), ranks))


def _group_name(argument: Any) -> str:
    """The name of the process group that an argument is; empty for other arguments."""
    if isinstance(argument, str):
        return argument
    if isinstance(argument, torch.ScriptObject):
        try:
            return str(dist.ProcessGroup.unbox(argument).group_name)
        except RuntimeError:
            return ""
    return ""
