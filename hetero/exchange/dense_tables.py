"""Dense parameters on the servers (`async`, `geo`): each tensor lies whole on one server.

Consumes   gradients (`async`), which the tower's own optimizer is applied to, or differences (`geo`), which are added
Produces   the parameters as they are now

Which server holds a tensor follows from the sizes alone: largest first, each to the server with the fewest floats so
far. Every tower begins with the same values; the first to open a server's part gives them, and the others' are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from hetero.errors import ProtocolError
from hetero.exchange.lanes import Lane
from hetero.exchange.messages import DensePart, DensePullReply, DensePushRequest
from hetero.records import F32, JobSpec, Mode


def assign(sizes: Sequence[int], *, servers: int) -> tuple[int, ...]:
    """The server of each tensor, by its number of floats."""
    owners, held = [0] * len(sizes), [0] * servers
    for tensor in sorted(range(len(sizes)), key=lambda tensor: (-sizes[tensor], tensor)):
        owners[tensor] = held.index(min(held))
        held[owners[tensor]] += sizes[tensor]
    return tuple(owners)


class DenseValues(Protocol):
    """The parameters of one server in one vector, and how they change."""

    def values(self) -> F32:
        """A copy of them, float32 [n]."""

    def update(self, change: F32) -> None:
        """Apply a tower's gradients, or add its differences, float32 [n]."""

    def state(self) -> dict[str, np.ndarray]:
        """The optimizer's state, by `<parameter>/<name of the tensor>`."""


class SummedValues:
    """Parameters to which differences are added (`geo`)."""

    def __init__(self, part: DensePart) -> None:
        self._values = np.array(part.values)

    def values(self) -> F32:
        return self._values.copy()

    def update(self, change: F32) -> None:
        self._values += change

    def state(self) -> dict[str, np.ndarray]:
        return {}


class DenseTables:
    """The dense parameters of one server. They load torch when a tower opens them in `async`, and never in `geo`."""

    def __init__(self, job: JobSpec) -> None:
        self._job = job
        self._lanes = [Lane("push of dense gradients") for _ in range(job.towers.count)]
        self._part: DensePart | None = None
        self._values: DenseValues | None = None

    def open(self, part: DensePart) -> None:
        """Hold these parameters from now on, unless some are held. Raises ProtocolError when those are others."""
        if self._part is not None:
            if (self._part.names, self._part.shapes) != (part.names, part.shapes):
                raise ProtocolError(f"server: holds dense {self._part.names}, a tower opens {part.names}")
            return
        self._part = part
        if self._job.mode is Mode.GEO:
            self._values = SummedValues(part)
            return
        from hetero.exchange.dense_optimizer import OptimizedValues

        self._values = OptimizedValues(part, self._job.tower, threads=self._job.servers.threads)

    def forget(self) -> None:
        """Hold nothing, as at the start: another model was loaded."""
        self._part = self._values = None

    def pull(self) -> DensePullReply:
        """The parameters as they are now."""
        return DensePullReply(values=self._opened().values())

    def state(self) -> dict[str, np.ndarray]:
        """The optimizer's state; nothing where none is held."""
        return {} if self._values is None else self._values.state()

    def push(self, request: DensePushRequest) -> None:
        """Apply gradients with the tower's optimizer. A repeated push is not applied again."""
        if self._lanes[request.tower].is_next(request.sequence):
            self._opened().update(np.array(request.gradients))

    def exchange(self, differences: F32) -> F32:
        """Add differences, and return the parameters; without any held here, nothing."""
        if self._values is None:
            return np.empty(0, np.float32)
        self._values.update(differences)
        return self._values.values()

    def _opened(self) -> DenseValues:
        if self._values is None:
            raise ProtocolError("server: asked for dense parameters before a tower opened them")
        return self._values
