"""Train a deep model to its end: the whole flow of a run.

packed tokens -> batches -> loss -> gradients -> parameters     hetero.loops.deep, by every rank of the mesh
validation tokens -> loss                                       the same ranks
model, optimizer, cursor -> snapshots                           the same ranks, each what it holds
"""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from hetero.checkpoint.mesh_snapshot import snapshots_in
from hetero.errors import CapacityError, JobError, PeerLostError
from hetero.hardware.probe import library_versions, probe_machine
from hetero.loops.deep import SNAPSHOTS, DeepLog, DeepRank, Evaluation
from hetero.loops.pace import Pace
from hetero.loops.pulses import PULSE_EVERY_S, RolePulses
from hetero.observe.events import EventLog
from hetero.observe.logs import setup_logging
from hetero.observe.run_folder import RunFolder, write_whole
from hetero.observe.spans import merge_totals
from hetero.parallel.compose import check_mesh
from hetero.parallel.mesh import Mesh, device_named
from hetero.records.deep_job import DeepJobSpec
from hetero.records.mesh import MeshSpec
from pipelines.build import Placement
from pipelines.deep_resolve import resolve_deep
from pipelines.deep_schema import DeepJob, dump_deep
from pipelines.deep_summary import DeepSpeed, DeepSummary, bubbles, sent_bytes
from pipelines.progress import Progress, ProgressRecord
from pipelines.submitted import check_lasting
from pipelines.watching import PulseLog, write_spans

if TYPE_CHECKING:  # Ray is loaded for runs on it
    from actors.rank import RankNews

_LOG = logging.getLogger(__name__)


def fit_deep(
    job: DeepJob,
    *,
    run_folder: Path,
    progress: Progress,
    placement: Placement,
    snapshot: Path | None = None,
) -> DeepSummary:
    """Train, evaluate, write the run's folder. snapshot: to go on from, of this run's data and model, on any mesh.

    Raises UserError for what the user can mend, HeteroError for a run that failed.
    """
    started_t = time.time()
    check_lasting(run_folder)
    spec = resolve_deep(job)
    if placement.in_process and spec.mesh.ranks > 1:
        raise JobError(f"--in-process: one process is one rank, and the mesh is {spec.mesh.describe()}; leave it out")
    snapshot = None if snapshot is None else snapshot.absolute()
    with (
        RunFolder.create(run_folder) as folder,
        EventLog(folder.events, run=folder.name, role="driver") as events,
    ):
        setup_logging(role="driver", file=folder.log)
        snapshot = _where_now(snapshot, run_folder=run_folder, moved_to=folder.moved_to)
        write_whole(folder.resolved_job, dump_deep(job))
        events.event("run.started", job=job.name, placement=str(placement), mesh=spec.mesh.describe())
        lost: list[str] = []
        try:
            spec, logs = _with_restarts(
                spec,
                folder=folder,
                placement=placement,
                snapshot=snapshot,
                progress=progress,
                events=events,
                restarts=job.train.restarts,
                lost=lost,
            )
        except BaseException as error:
            events.event("run.failed", error=type(error).__name__, message=str(error))
            raise
        summary = _summary(spec, logs, folder=folder, placement=placement, started_t=started_t, lost=lost)
        for number, log in enumerate(logs):
            write_spans(events, log.spans, role=f"rank/{number}")
        events.event("run.finished", validation_loss=summary.validation_loss)
        summary.write(folder.summary)
        return summary


def _where_now(snapshot: Path | None, *, run_folder: Path, moved_to: Path | None) -> Path | None:
    """Where a snapshot lies after an older run in this run's folder, which it may be of, was moved aside."""
    here = run_folder.absolute()
    if snapshot is None or moved_to is None or not snapshot.is_relative_to(here):
        return snapshot
    return moved_to.absolute() / snapshot.relative_to(here)


def smaller_mesh(spec: DeepJobSpec) -> MeshSpec | None:
    """The mesh with half of its data ways, copies before shards; None when it has one. Models and batches stay."""
    for axis in ("dp", "shard"):
        ranks = getattr(spec.mesh, axis)
        if ranks > 1:
            smaller = replace(spec.mesh, **{axis: ranks // 2})
            check_mesh(smaller, model=spec.model, batch_size=spec.batch_size)
            return smaller
    return None


def _with_restarts(
    spec: DeepJobSpec,
    *,
    folder: RunFolder,
    placement: Placement,
    snapshot: Path | None,
    progress: Progress,
    events: EventLog,
    restarts: int,
    lost: list[str],
) -> tuple[DeepJobSpec, list[DeepLog]]:
    """Run, and again from the newest snapshot when a rank was lost; on a smaller mesh when there is no room."""
    while True:
        watch = _Watch(spec, progress, events)
        try:
            return spec, _execute(spec, folder=folder, placement=placement, snapshot=snapshot, watch=watch)
        except PeerLostError as error:
            if len(lost) >= restarts:
                raise
            lost.append(str(error))
        except CapacityError as error:
            smaller = smaller_mesh(spec) if lost else None
            if smaller is None:
                raise
            _LOG.warning("%s; going on with %s", error, smaller.describe())
            spec = replace(spec, mesh=smaller)
        found = snapshots_in(folder.path / SNAPSHOTS)
        snapshot = found[-1] if found else snapshot
        _LOG.warning("going on from %s after: %s", snapshot or "the beginning", lost[-1])
        events.event("run.restarted", snapshot=str(snapshot), reason=lost[-1], mesh=spec.mesh.describe())


def _execute(
    spec: DeepJobSpec, *, folder: RunFolder, placement: Placement, snapshot: Path | None, watch: _Watch
) -> list[DeepLog]:
    watch.begin(f"starting {spec.mesh.describe()}, {placement}")
    if placement.in_process:
        return [_in_process(spec, folder=folder, snapshot=snapshot, watch=watch)]
    from actors.context import connected_with
    from actors.rank import DeepContext
    from actors.ranks import RankGroup, rank_resources

    paths = tuple(path for path in sys.path if path)
    context = DeepContext(run=folder.name, job=spec, folder=folder.path.absolute(), import_paths=paths)
    cpus = rank_resources(spec, ranks=spec.mesh.ranks)["CPU"]
    with connected_with(cpus, address=placement.address):
        ranks = RankGroup(context)
        try:
            ranks.join(snapshot)
            watch.begin("training")
            return ranks.train(watch=watch.news)
        finally:
            ranks.close()


def _in_process(spec: DeepJobSpec, *, folder: RunFolder, snapshot: Path | None, watch: _Watch) -> DeepLog:
    torch.set_num_threads(spec.threads)
    mesh = Mesh(spec.mesh, rank=0, size=1, device=device_named(spec.device), deadline_s=spec.deadline_s)
    try:
        rank = DeepRank(spec, mesh=mesh)
        if snapshot is not None:
            rank.resume(snapshot)
        watch.begin("training")
        log = rank.train(folder.path, after_step=lambda log: watch.log(log, rank))
        watch.pulse(log, rank)
        return log
    finally:
        mesh.close()


class _Watch:
    """Shows how far training is and notes its steps."""

    def __init__(self, spec: DeepJobSpec, progress: Progress, events: EventLog) -> None:
        self._spec = spec
        self._progress = progress
        self._events = events
        self._first: tuple[int, float] | None = None
        self._last_step = -1
        self._evaluation: Evaluation | None = None
        self._pulses = PulseLog(events)
        self._rank = RolePulses("rank/0")
        self._pace = Pace(PULSE_EVERY_S)

    def begin(self, phase: str) -> None:
        self._progress.phase(phase)

    def news(self, news: RankNews) -> None:
        """Of a rank that is an actor."""
        self._pulses.keep(news.pulses)
        self.step(news.step, news.loss, news.evaluation)

    def log(self, log: DeepLog, rank: DeepRank) -> None:
        """After a step of a rank in this process."""
        if self._pace.due():
            self.pulse(log, rank)
        self.step(log.first_step + log.steps, log.losses[-1], log.evaluations[-1] if log.evaluations else None)

    def pulse(self, log: DeepLog, rank: DeepRank) -> None:
        """How a rank in this process stands."""
        self._pulses.keep([self._rank.of_rank(log, spans=rank.clock.so_far(), job=self._spec)])

    def step(self, step: int, loss: float | None, evaluation: Evaluation | None) -> None:
        now = time.monotonic()
        if evaluation is not None and evaluation != self._evaluation:
            self._evaluation = evaluation
            _LOG.info("after step %d: validation loss %.4f", evaluation.step, evaluation.loss)
            self._events.event("evaluation", step=evaluation.step, loss=evaluation.loss, targets=evaluation.targets)
        if loss is None or step == self._last_step:
            return
        self._last_step = step
        if self._first is None:
            self._first = (step, now)
        done, seconds = step - self._first[0], now - self._first[1]
        rate = done / seconds if seconds > 0 else 0.0
        self._events.step(step, role="rank/0", loss=loss)
        self._progress.update(
            ProgressRecord(
                step=step,
                steps_total=self._spec.last_step,
                rows=step * self._spec.batch_size,
                rows_per_s=rate * self._spec.batch_size,
                loss=loss,
                seconds_left=(self._spec.last_step - step) / rate if rate else None,
            )
        )


def _summary(
    spec: DeepJobSpec,
    logs: list[DeepLog],
    *,
    folder: RunFolder,
    placement: Placement,
    started_t: float,
    lost: list[str],
) -> DeepSummary:
    first = logs[0]
    np.save(folder.losses, np.array(first.losses))
    np.save(folder.step_ends, np.array(first.step_ends_t))
    speed = DeepSpeed.of(spec, logs)
    return DeepSummary(
        name=spec.name,
        run_folder=str(folder.path),
        seed=spec.seed,
        placement=str(placement),
        mesh=spec.mesh.describe(),
        ranks=spec.mesh.ranks,
        parameters=spec.model.parameters,
        steps=first.steps,
        tokens=first.steps * spec.tokens_per_step,
        tokens_per_s=speed.tokens_per_s,
        mfu=speed.mfu,
        matrix_flops=speed.matrix_flops,
        flops_per_token=spec.model.flops_per_token,
        data_sheet_flops=speed.data_sheet_flops,
        data_sheet_mfu=speed.tokens_per_s * spec.model.flops_per_token / speed.data_sheet_flops
        if speed.data_sheet_flops
        else None,
        predicted_tokens_per_s=speed.predicted.tokens_per_s,
        predicted_mfu=speed.predicted.tokens_per_s * spec.model.flops_per_token / speed.matrix_flops,
        predicted_bubble=speed.predicted.bubble,
        predicted_sent_bytes=speed.predicted.sent_bytes,
        predicted_peak_bytes=speed.predicted.peak_bytes,
        assumed=speed.predicted.assumed,
        wall_s=time.time() - started_t,
        final_loss=first.losses[-1] if first.losses else None,
        validation_loss=first.evaluations[-1].loss if first.evaluations else None,
        evaluations=[asdict(evaluation) for evaluation in first.evaluations],
        peak_bytes={f"rank/{number}": log.peak_bytes for number, log in enumerate(logs)},
        precision=spec.mesh.precision.value,
        bubble=bubbles(spec, logs),
        sent_bytes=sent_bytes(spec, logs),
        skipped_steps=first.skipped,
        restarts=tuple(lost),
        snapshot=first.snapshot,
        time_to_first_step_s=first.step_ends_t[0] - started_t if first.step_ends_t else None,
        seconds=merge_totals(log.spans for log in logs).by_name(),
        losses=folder.losses.name,
        versions=library_versions(),
        hardware=probe_machine(disk_path=folder.path).to_dict(),
    )
