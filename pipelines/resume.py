"""Go on with a run from its newest whole snapshot."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from hetero.checkpoint.search import Finding, latest_good
from hetero.checkpoint.snapshot import Snapshot
from hetero.errors import UserError
from hetero.loops.run import DataPass
from hetero.loops.tower_state import ResumePoint
from hetero.observe.run_folder import RunFolder
from hetero.observe.summary import Summary
from hetero.records import Cursor, JobSpec
from pipelines.job import load_job, with_counts

if TYPE_CHECKING:
    from pipelines.progress import Progress

_LOG = logging.getLogger(__name__)


class Resume(Enum):
    """What a run does about an earlier one in its folder: move it aside, go on with it if it can, or go on or fail."""

    NO = "no"
    IF_THERE = "if there"
    MUST = "must"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeFrom:
    """The snapshot a run goes on from. damaged: what is wrong with newer ones."""

    snapshot: Snapshot
    cursor: Cursor
    damaged: tuple[Finding, ...]


def resume_run(
    run_folder: Path,
    *,
    overrides: Sequence[str] = (),
    readers: int | None = None,
    servers: int | None = None,
    towers: int | None = None,
    address: str | None = None,
    in_process: bool = False,
    progress: Progress,
) -> Summary:
    """Train on from the newest whole snapshot of a run to the end of its job, score, and write its summary.

    overrides: as for `train`; numbers of actors, length, snapshots and learning rates may change, what the rows and the
    order of the data depend on may not.
    Raises UserError for a folder without a run or without a snapshot, a job that does not fit the snapshot, and a
    finished run with nothing changed.
    """
    from pipelines.train import fit

    folder = RunFolder.open(run_folder)
    changed = bool(overrides) or any(count is not None for count in (readers, servers, towers))
    if folder.finished and not changed:
        raise UserError(
            f"run folder {run_folder}: the run is finished; to train on, give it more, such as "
            "--set train.epochs=N or --set train.max_steps=N"
        )
    job = load_job(folder.resolved_job, overrides=overrides)
    job = with_counts(job, readers=readers, servers=servers, towers=towers)
    return fit(
        job,
        run_folder=run_folder,
        address=address,
        in_process=in_process,
        resume=Resume.MUST,
        progress=progress,
    )


def find_start(run_folder: Path, *, resume: Resume, job: JobSpec, data: DataPass) -> ResumeFrom | None:
    """Where a run with this folder begins: None at the start. data: of the job's training.

    Raises UserError when there must be a snapshot and is none, and when one does not fit the job.
    """
    if resume is Resume.NO or (resume is Resume.IF_THERE and not RunFolder.is_run(run_folder)):
        return None
    folder = RunFolder.open(run_folder)
    found = latest_good(folder.snapshots)
    if found.good is None:
        if resume is Resume.IF_THERE:
            return None
        damaged = "; ".join(finding.message for finding in found.findings[:3])
        raise UserError(
            f"run folder {run_folder}: has no whole snapshot to go on from"
            + (f" ({damaged})" if damaged else "")
            + "; train anew, with `snapshots.every_s` or `snapshots.every_steps` in the job"
        )
    snapshot = found.good
    point = ResumePoint.of(snapshot)
    _check(snapshot, point, job=job, data=data)
    for finding in found.findings:
        _LOG.warning("snapshot %s is not used: %s", finding.snapshot, finding.message)
    return ResumeFrom(snapshot=snapshot, cursor=point.cursor, damaged=found.findings)


def newest(folder: RunFolder) -> ResumeFrom | None:
    """The newest whole snapshot of a run that is under way, if there is one."""
    found = latest_good(folder.snapshots)
    if found.good is None:
        return None
    return ResumeFrom(snapshot=found.good, cursor=ResumePoint.of(found.good).cursor, damaged=found.findings)


def _check(snapshot: Snapshot, point: ResumePoint, *, job: JobSpec, data: DataPass) -> None:
    record = snapshot.manifest.job
    if (difference := record.difference(job)) is not None:
        raise UserError(f"{snapshot.path}: is of another job, so it cannot go on: {difference}")
    if record.seed != job.seed:
        raise UserError(
            f"{snapshot.path}: was trained with seed {record.seed}, the job has seed {job.seed}; set it back"
        )
    if point.data != data.digest:
        raise UserError(
            f"{snapshot.path}: was trained on other files, or on the same ones in another order "
            "(data.train, data.shuffle, data.text_block_bytes); restore them, or train anew"
        )
