"""Dense parameters that a server updates with the tower's own optimizer (`async`): one definition for both places.

Apart from `dense_tables`, because it loads torch, which servers do without in other modes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from hetero.exchange.messages import DensePart
from hetero.observe.spans import SpanClock
from hetero.parallel.dense import DenseUpdater
from hetero.parallel.group import SoleTower
from hetero.records import F32, TowerSpec


class OptimizedValues:
    """The parameters of one server, stepped once for every push of a tower."""

    def __init__(self, part: DensePart, spec: TowerSpec, *, threads: int) -> None:
        torch.set_num_threads(threads)
        self._module = nn.ParameterList()
        start = 0
        for shape in part.shapes:
            size = int(np.prod(shape, dtype=np.int64))
            values = torch.from_numpy(np.array(part.values[start : start + size])).reshape(shape)
            self._module.append(nn.Parameter(values))
            start += size
        self._updater = DenseUpdater(self._module, spec, group=SoleTower(), clock=SpanClock())
        self._names = {str(number): name for number, name in enumerate(part.names)}
        numbers = {name: number for number, name in self._names.items()}
        self._updater.restore(
            {_renamed(path, numbers): torch.from_numpy(np.array(value)) for path, value in part.state.items()}
        )

    def values(self) -> F32:
        flat: F32 = np.concatenate([parameter.detach().numpy().reshape(-1) for parameter in self._module])
        return flat

    def state(self) -> dict[str, np.ndarray]:
        return {_renamed(path, self._names): value.numpy() for path, value in self._updater.state().items()}

    def update(self, change: F32) -> None:
        gradients, start = torch.from_numpy(change), 0
        for parameter in self._module:
            stop = start + parameter.numel()
            parameter.grad = gradients[start:stop].view_as(parameter)
            start = stop
        self._updater.step(torch.zeros(()))


def _renamed(path: str, names: Mapping[str, str]) -> str:
    name, _, key = path.rpartition("/")
    return f"{names[name]}/{key}"
