"""What a tower puts into a snapshot and takes out of it: dense parameters, optimizer, losses so far, cursor.

    dense.safetensors       parameters and buffers
    optimizer.safetensors   the dense optimizer's tensors, by `<parameter>/<name of the tensor>`
    history.safetensors     losses float64 [steps], step_ends float64 [steps] (unix seconds)
    state.json              the cursor, counters, seconds trained

Dropout and first values of rows need nothing here: they follow from the job's seed, the step and the key.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from hetero.checkpoint.manifest import FileEntry, FileKind
from hetero.checkpoint.pretrained import StartedPart, start_parts
from hetero.checkpoint.snapshot import Snapshot
from hetero.checkpoint.state import read_state, write_state
from hetero.checkpoint.tensors import DENSE, OPTIMIZER, read_module, read_tensors, write_tensors
from hetero.errors import DataError, UserError
from hetero.exchange.messages import RejectedGradient
from hetero.loops.results import StepLog
from hetero.loops.text_ranks import TEXT, start_on_mesh
from hetero.loops.tower import Tower
from hetero.parallel.mesh_text import MeshText
from hetero.records import Cursor, JobSpec

HISTORY = "history"


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerState:
    """Copies of a tower's state after a step; the tower may train on."""

    cursor: Cursor
    dense: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    history: dict[str, torch.Tensor]
    counters: dict[str, object]

    @staticmethod
    def of(tower: Tower, cursor: Cursor, *, rejected_rows: int) -> TowerState:
        """The state now that everything is with the servers. rejected_rows: over all towers."""
        tower.dense.refresh()
        return replace(
            TowerState.share(tower, cursor, rejected_rows=rejected_rows),
            dense={name: value.detach().clone() for name, value in tower.module.state_dict().items()},
            optimizer=tower.dense.state(),
        )

    @staticmethod
    def share(tower: Tower, cursor: Cursor, *, rejected_rows: int | None = None) -> TowerState:
        """What a tower other than tower 0 has alone: losses and counts. rejected_rows: default, this tower's."""
        log = tower.log
        trained_s = log.earlier_s + ((log.last_step_t or log.started_t) - log.started_t)
        return TowerState(
            cursor=cursor,
            dense={},
            optimizer={},
            history={
                "losses": torch.tensor(log.losses, dtype=torch.float64),
                "step_ends": torch.tensor(log.step_ends_t, dtype=torch.float64),
            },
            counters={
                "trained_s": trained_s,
                "rejected_rows": log.rejected_rows if rejected_rows is None else rejected_rows,
                "rejected_dense": dict(log.rejected_dense),
                "rejected_examples": [asdict(example) for example in log.rejected_examples],
            },
        )

    def write_share(self, *, folder: str, tower: int) -> tuple[FileEntry, ...]:
        """Of a tower without a sum over towers, other than tower 0: its share of the losses, and its counts."""
        rejected = torch.tensor([self.counters["rejected_rows"]], dtype=torch.int64)
        share = {"losses": self.history["losses"], "rejected_rows": rejected}
        return (write_tensors(share, folder=folder, name=f"{HISTORY}.tower-{tower:04d}"),)

    def write(self, *, folder: str, digest: str) -> tuple[FileEntry, ...]:
        """Write it into a draft's folder. digest: of the data. Raises SnapshotError when the disk refuses."""
        record = {"cursor": asdict(self.cursor), "data": digest, "counters": self.counters}
        return (
            write_tensors(self.dense, folder=folder, name=DENSE),
            write_tensors(self.optimizer, folder=folder, name=OPTIMIZER),
            write_tensors(self.history, folder=folder, name=HISTORY),
            write_state(record, folder=folder),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """Where a snapshot lets a run go on. data: digest of the splits it was trained on, see `DataPass.digest`."""

    cursor: Cursor
    data: str
    counters: dict[str, Any]

    @staticmethod
    def of(snapshot: Snapshot) -> ResumePoint:
        """Read it. Raises DataError for a damaged snapshot, or one without a cursor, such as a run's model."""
        record = read_state(snapshot)
        try:
            return ResumePoint(
                cursor=Cursor(**record["cursor"]), data=str(record["data"]), counters=dict(record["counters"])
            )
        except (KeyError, TypeError) as error:
            raise DataError(f"{snapshot.path}: has no state that a run can go on from ({error})") from error


def restore_tower(tower: Tower, snapshot: Snapshot, *, first: bool) -> None:
    """Take up dense parameters, optimizer and, as tower 0 (`first`), the history of the run.

    Raises DataError when the snapshot is damaged or does not fit the tower.
    """
    point = ResumePoint.of(snapshot)
    read_module(tower.module, snapshot)
    tower.dense.restore(read_tensors(snapshot, name=OPTIMIZER))
    history = read_tensors(snapshot, name=HISTORY)
    for entry in snapshot.manifest.of_kind(FileKind.TENSORS):
        if entry.file.startswith(f"{HISTORY}.tower-"):
            share = read_tensors(snapshot, name=entry.file.removesuffix(".safetensors"))
            history["losses"] += share["losses"]
            point.counters["rejected_rows"] += int(share["rejected_rows"])
    losses, step_ends = history["losses"].tolist(), history["step_ends"].tolist()
    if len(losses) != point.cursor.step:
        raise DataError(f"{snapshot.path}: has {len(losses)} losses, its cursor stands after {point.cursor.step} steps")
    tower.log = _log_of_first(tower.log, point, losses, step_ends) if first else _log_of_other(tower.log, losses)


def warm_tower(tower: Tower, snapshot: Snapshot) -> None:
    """Begin with a snapshot's parameters and buffers, and a new optimizer. Raises UserError when they do not fit."""
    try:
        tower.module.load_state_dict(read_tensors(snapshot, name=DENSE))
    except RuntimeError as error:
        raise UserError(
            f"warm_start.dense: the parameters in {snapshot.path} are not those of this tower: {error}; set it to "
            "false, or use the same tower"
        ) from error
    tower.dense.reopen()


def start_tower(tower: Tower, job: JobSpec) -> tuple[StartedPart, ...]:
    """Let its parts begin with pretrained models; see `start_parts`."""
    text = getattr(tower.module, TEXT, None)
    if isinstance(text, MeshText):
        return start_on_mesh(job, text)
    started = start_parts(tower.module, job.tower)
    if started:
        tower.dense.reopen()
    return started


def _log_of_first(log: StepLog, point: ResumePoint, losses: list[float], step_ends: list[float]) -> StepLog:
    counters = point.counters
    return StepLog(
        joint=log.joint,
        losses=losses,
        rows=point.cursor.rows,
        rejected_rows=int(counters["rejected_rows"]),
        rejected_examples=[RejectedGradient(**example) for example in counters["rejected_examples"]],
        rejected_dense=dict(counters["rejected_dense"]),
        step_ends_t=step_ends,
        earlier_s=float(counters["trained_s"]),
    )


def _log_of_other(log: StepLog, losses: list[float]) -> StepLog:
    """Losses of the joint batch are the same on all towers; shares of it are told by tower 0."""
    told = losses if log.joint else [0.0] * len(losses)
    return StepLog(joint=log.joint, losses=told)
