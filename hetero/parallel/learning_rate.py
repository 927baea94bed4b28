"""The learning rate over the steps of a run."""

from __future__ import annotations

import math
from typing import Protocol

from hetero.records.mesh import LrSchedule


class LrPlan(Protocol):
    """What says it: `DeepOptimizerSpec`, or `PartSpec` of a tower."""

    @property
    def lr(self) -> float: ...
    @property
    def warmup(self) -> int: ...
    @property
    def schedule(self) -> LrSchedule: ...
    @property
    def steps(self) -> int: ...
    @property
    def final_lr_share(self) -> float: ...


def learning_rate(plan: LrPlan, step: int) -> float:
    """Of step `step`, from 0: linear warm-up, then the schedule down to `final_lr_share` at `plan.steps`."""
    if step < plan.warmup:
        return plan.lr * (step + 1) / plan.warmup
    if plan.schedule is LrSchedule.CONSTANT:
        return plan.lr
    done = min(1.0, (step - plan.warmup) / max(1, plan.steps - plan.warmup))
    left = 1.0 - done if plan.schedule is LrSchedule.LINEAR else 0.5 * (1.0 + math.cos(math.pi * done))
    return plan.lr * (plan.final_lr_share + (1.0 - plan.final_lr_share) * left)
