"""Snapshots of a deep model that may be read on any mesh, by `torch.distributed.checkpoint`.

A snapshot is a folder `step-00000100`: parameters and moments by their names in the whole model, each rank writing the
pieces it holds, and `snapshot.json`. It is written beside its name and renamed when all ranks have finished.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from hetero.errors import DataError, JobError
from hetero.parallel.adamw import FIRST_MOMENT, SECOND_MOMENT
from hetero.parallel.deep_tower import DeepTower

FACTS = "snapshot.json"
VERSION = 1
_NAME = re.compile(r"step-(\d+)")
_MOMENTS = (FIRST_MOMENT, SECOND_MOMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFacts:
    """step: steps done. cursor: blocks read, in training order. optimizer_steps: steps that changed the model.

    model: the spec, as text, which another model must not read. data: SHA-256 of the tokens that the cursor is in.
    """

    step: int
    cursor: int
    optimizer_steps: int
    loss_scale: float | None
    model: str
    seed: int
    data: str
    mesh: str
    version: int = VERSION


def write_snapshot(tower: DeepTower, folder: Path, *, cursor: int, data: str, keep: int) -> Path:
    """Write the state after the last step; all ranks call it together. Older snapshots than the newest `keep` go.

    data: the tokens' SHA-256. Returns the snapshot's folder.
    """
    final = folder / f"step-{tower.step_number:08d}"
    growing = folder / f".{final.name}"
    leads = tower.mesh.rank == 0
    if leads:
        shutil.rmtree(growing, ignore_errors=True)
        growing.mkdir(parents=True)
    dist.barrier()
    save(dict(_state(tower)), checkpoint_id=str(growing))
    if leads:
        facts = SnapshotFacts(
            step=tower.step_number,
            cursor=cursor,
            optimizer_steps=tower.optimizer.steps,
            loss_scale=tower.scale.value if tower.scale else None,
            model=repr(tower.model),
            seed=tower.seed,
            data=data,
            mesh=tower.mesh.spec.describe(),
        )
        (growing / FACTS).write_text(json.dumps(asdict(facts), indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(final, ignore_errors=True)
        growing.rename(final)
        for old in snapshots_in(folder)[:-keep]:
            shutil.rmtree(old, ignore_errors=True)
    dist.barrier()
    return final


def read_snapshot(tower: DeepTower, snapshot: Path, *, data: str | None) -> SnapshotFacts:
    """Take over a snapshot's state, whatever mesh wrote it; all ranks call it together.

    data: the SHA-256 of the tokens to go on with; None does not ask. Raises JobError when model, seed or tokens are
    others, DataError when the snapshot cannot be read.
    """
    facts = read_facts(snapshot)
    _refuse_others(facts, tower, snapshot, data)
    state = dict(_state(tower))
    try:
        load(state, checkpoint_id=str(snapshot))
    except (OSError, ValueError, RuntimeError, CheckpointException) as error:
        raise DataError(f"{snapshot}: cannot be read ({str(error).splitlines()[0]})") from error
    tower.step_number = facts.step
    tower.optimizer.steps = facts.optimizer_steps
    if tower.scale is not None and facts.loss_scale is not None:
        tower.scale.value = facts.loss_scale
    return facts


def read_facts(snapshot: Path) -> SnapshotFacts:
    """What a snapshot says of itself. Raises DataError when it is none."""
    path = snapshot / FACTS
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record.get("version") != VERSION:
            raise DataError(f"{path}: is of version {record.get('version')}, this build reads version {VERSION}")
        return SnapshotFacts(**record)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{snapshot}: is no snapshot ({error})") from error


def snapshots_in(folder: Path) -> list[Path]:
    """Whole snapshots, oldest first."""
    found = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name) and (path / FACTS).is_file()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def _state(tower: DeepTower) -> dict[str, Tensor]:
    """This rank's parameters and moments as tensors that share their memory and know their place in the whole."""
    state: dict[str, Tensor] = {}
    for one, moments in tower.optimizer.pieces():
        state[f"model.{one.name}"] = one.parameter.detach()
        for moment in _MOMENTS:
            state[f"{moment}.{one.name}"] = _placed(moments[moment], like=one.parameter)
    return state


def _placed(piece: Tensor, *, like: Tensor) -> Tensor:
    if not isinstance(like, DTensor):
        return piece
    whole: Tensor = DTensor.from_local(
        piece, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return whole


def _refuse_others(facts: SnapshotFacts, tower: DeepTower, snapshot: Path, data: str | None) -> None:
    if facts.model != repr(tower.model):
        raise JobError(
            f"{snapshot}: holds another model; it was written for\n  {facts.model}\nand the job says\n  {tower.model!r}"
        )
    if data is not None and facts.data != data:
        raise JobError(
            f"{snapshot}: its place in the data is one in other tokens (SHA-256 {facts.data[:12]}, these are "
            f"{data[:12]}); go on with the same packed text"
        )
    if facts.seed != tower.seed:
        raise JobError(f"{snapshot}: was written with seed {facts.seed}, the job says {tower.seed}; take the same seed")
