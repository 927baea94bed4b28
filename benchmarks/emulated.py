"""A DLRM on an emulated device: it computes as it is, and waits as long as the device of its node would take besides.

A node says which device it stands for by its label `hetero/accelerator`; one without it stands for `cpu`. A process
without Ray waits for nothing. While a tower waits, its core is free, as it is where a device computes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from torch import Tensor

from actors.unlike_nodes import is_on_ray, label_of_this_node
from hetero.towers.dlrm import DLRM
from hetero.towers.embeddings import Embeddings, TowerInputs

_LABEL = "hetero/accelerator"
_DEVICE_S = 1e-3
"""Of a step, whatever its rows: as kernels take to start."""


class EmulatedDLRM(DLRM):
    """row_us: microseconds a row of each device, by name."""

    def __init__(
        self,
        inputs: TowerInputs,
        bottom: Sequence[int] = (16,),
        top: Sequence[int] = (16,),
        row_us: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(inputs, bottom=bottom, top=top)
        device = device_here()
        self._row_s = 1e-6 * (row_us or {}).get(device, 0.0)
        self._step_s = _DEVICE_S if self._row_s else 0.0

    def forward(self, dense: Tensor, embeddings: Embeddings) -> Tensor:
        if self.training and self._row_s:
            time.sleep(self._step_s + self._row_s * len(dense))
        return super().forward(dense, embeddings)


def device_here() -> str:
    """The device that this process's node stands for; empty without Ray."""
    return (label_of_this_node(_LABEL) or "cpu") if is_on_ray() else ""
