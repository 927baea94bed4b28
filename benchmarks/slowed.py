"""A DLRM that is slow in one tower, so that towers drift apart as machines of unlike speed do.

It knows its tower without being told: the step loop seeds torch by (job seed, step, tower) before each forward pass,
the tower in the low 12 bits. Slowness is computed, not slept: more forward passes whose results are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hetero.towers.dlrm import DLRM
from hetero.towers.embeddings import Embeddings, TowerInputs

_TOWER_BITS = (1 << 12) - 1
SLOW_TOWER = 1


class SlowedDLRM(DLRM):
    """passes: forward passes that tower 1 makes on top of the one that counts, while it trains."""

    def __init__(
        self,
        inputs: TowerInputs,
        bottom: Sequence[int] = (512, 256),
        top: Sequence[int] = (512, 256),
        passes: int = 20,
    ) -> None:
        super().__init__(inputs, bottom=bottom, top=top)
        self.passes = passes

    def forward(self, dense: Tensor, embeddings: Embeddings) -> Tensor:
        if self.training and torch.initial_seed() & _TOWER_BITS == SLOW_TOWER:
            with torch.no_grad():
                for _ in range(self.passes):
                    super().forward(dense, embeddings)
        return super().forward(dense, embeddings)
