"""From a resolved job to a run that can train: in this process, or as actors on Ray."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from hetero.errors import TowerError
from hetero.loops.local import LocalRun
from hetero.loops.recovery import RecoveryLog, Room
from hetero.loops.run import TrainingRun
from hetero.records import JobSpec
from hetero.towers.build import make_tower


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a run's roles live. in_process: all in this process; otherwise on the Ray cluster at `address`, or on a
    local one that is started for the run when `address` is None."""

    in_process: bool = False
    address: str | None = None

    def __str__(self) -> str:
        if self.in_process:
            return "in process"
        return "local Ray" if self.address is None else f"Ray at {self.address}"


def tower_class_of(name: str) -> type[nn.Module] | None:
    """The class behind `__main__:Name`, which only the driver can look up; None for every other name.

    Raises TowerError when this process is not the script that defines it.
    """
    module, _, attribute = name.partition(":")
    if module != "__main__":
        return None
    found: type[nn.Module] | None = getattr(sys.modules["__main__"], attribute, None)
    if found is None:
        raise TowerError(
            f"tower: `{name}` was defined in the script that trained, which this process is not; call this from that "
            "script, or put the tower into a module of its own and name it `module:Class` in the job"
        )
    return found


def check_tower(job: JobSpec, *, tower_class: type[nn.Module] | None = None) -> None:
    """Build the tower once, before anything else starts. Raises TowerError."""
    _import_from_here()
    try:
        make_tower(job, tower_class=tower_class)
    except TowerError as error:
        raise TowerError(f"tower: {error}") from error


@contextmanager
def reached(job: JobSpec, *, placement: Placement) -> Iterator[None]:
    """The cluster that runs of the job live on, for the duration: one after the other finds it there."""
    if placement.in_process:
        yield
        return
    from actors.context import connected

    with connected(job, address=placement.address):
        yield


def cluster_room(placement: Placement) -> Room | None:
    """What the nodes that are alive can hold; None without a cluster."""
    if placement.in_process:
        return None
    from actors.bundles import bundles_of
    from actors.processes import live_nodes

    return Room(
        nodes=tuple(live_nodes().values()), demand=lambda job: [bundle.resources["CPU"] for bundle in bundles_of(job)]
    )


def room_of_run(name: str, *, placement: Placement) -> Room | None:
    """What the cluster has for the run of that name, all that others hold left out; None without a cluster."""
    if placement.in_process:
        return None
    from actors.bundles import bundles_of
    from actors.room import room_of

    return Room(nodes=room_of(name), demand=lambda job: [bundle.resources["CPU"] for bundle in bundles_of(job)])


@contextmanager
def opened_run(
    job: JobSpec,
    *,
    name: str,
    placement: Placement,
    tower_class: type[nn.Module] | None = None,
    recovery: RecoveryLog | None = None,
) -> Iterator[TrainingRun]:
    """The job's roles, alive for the duration. name: the first part of the actors' names. recovery: of the run.

    Raises what the roles raise while they start.
    """
    _import_from_here()
    if placement.in_process:
        run: TrainingRun = LocalRun(job, make_tower=lambda: make_tower(job, tower_class=tower_class))
        try:
            yield run
        finally:
            run.close()
        return
    from actors.context import RunContext, connected
    from actors.supervisor import RayRun

    context = RunContext(run=name, job=job, tower_class=tower_class, import_paths=tuple(p for p in sys.path if p))
    with connected(job, address=placement.address):
        run = RayRun(context, recovery=recovery)
        try:
            yield run
        finally:
            run.close()


def _import_from_here() -> None:
    """A tower's import path is looked up in the current directory too."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
