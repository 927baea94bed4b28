"""The tower of a job, built the same on every tower and in every process."""

from __future__ import annotations

from torch import nn

from hetero.records import JobSpec
from hetero.towers.embeddings import tower_inputs
from hetero.towers.registry import build_tower, build_tower_class


def make_tower(job: JobSpec, *, tower_class: type[nn.Module] | None = None) -> nn.Module:
    """Build the job's tower with first weights from the job's seed.

    tower_class: stands in for the name in the job, for a class that cannot be imported by it (one of `__main__`).
    Raises TowerError.
    """
    inputs = tower_inputs(job)
    if tower_class is None:
        return build_tower(job.tower, inputs, seed=job.seed)
    return build_tower_class(tower_class, inputs, job.tower.args, seed=job.seed)
