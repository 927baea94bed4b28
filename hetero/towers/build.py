"""The tower of a job, built the same on every tower and in every process."""

from __future__ import annotations

from torch import nn

from hetero.errors import TowerError
from hetero.records import JobSpec
from hetero.towers.embeddings import tower_inputs
from hetero.towers.registry import build_tower, build_tower_class


def make_tower(job: JobSpec, *, tower_class: type[nn.Module] | None = None) -> nn.Module:
    """Build the job's tower with first weights from the job's seed; frozen parts need no gradient.

    tower_class: stands in for the name in the job, for a class that cannot be imported by it (one of `__main__`).
    Raises TowerError, also for a part that the tower has not.
    """
    inputs = tower_inputs(job)
    if tower_class is None:
        module = build_tower(job.tower, inputs, seed=job.seed)
    else:
        module = build_tower_class(tower_class, inputs, job.tower.args, seed=job.seed)
    for number, part in enumerate(job.tower.parts):
        own = [parameter for name, parameter in module.named_parameters() if name.startswith(f"{part.name}.")]
        if not own:
            there = ", ".join(sorted({name.split(".")[0] for name, _ in module.named_parameters() if "." in name}))
            raise TowerError(f"tower.parts[{number}].name: no parameters lie under `{part.name}`, but under {there}")
        for parameter in own:
            parameter.requires_grad_(not part.frozen)
    return module
