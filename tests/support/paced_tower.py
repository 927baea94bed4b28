"""A tower whose steps take a while on any machine: what happens to a run can be timed by its steps."""

from __future__ import annotations

import time

import torch

from hetero.records import TowerSpec
from hetero.towers.embeddings import Embeddings
from hetero.towers.wide_and_deep import WideAndDeep

STEP_S = 0.015
PACED = TowerSpec(name="tests.support.paced_tower:PacedTower", args={"hidden": [16, 8]}, lr=0.01)


class PacedTower(WideAndDeep):
    """Waits in every step that trains."""

    def forward(self, dense: torch.Tensor, embeddings: Embeddings) -> torch.Tensor:
        if self.training:
            time.sleep(STEP_S)
        return super().forward(dense, embeddings)
