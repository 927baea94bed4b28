"""Train a job to its end: the whole flow of a run.

files -> batches -> working sets -> rows -> loss -> gradients -> rows     hetero.loops, by the run's roles
test files -> scores -> metrics                                           the same roles, no row created
model, summary, losses -> the run's folder
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import nn

from hetero.checkpoint.pretrained import start_parts
from hetero.checkpoint.snapshot import list_snapshots
from hetero.checkpoint.warm_start import open_warm_start
from hetero.errors import StoppedError
from hetero.loops.moves import ServersPlace
from hetero.loops.protocols import Phase
from hetero.loops.recovery import Counts, RecoveryLog
from hetero.loops.run import DataPass, RunProgress, TrainOutcome
from hetero.loops.snapshots import SnapshotPlace, clear_drafts
from hetero.loops.warm import warm_kernels
from hetero.observe.events import EventLog
from hetero.observe.logs import setup_logging
from hetero.observe.run_folder import RunFolder, write_whole
from hetero.observe.summary import Summary
from hetero.records import JobSpec
from pipelines.baseline import train_baseline
from pipelines.beginning import begin_run
from pipelines.build import Placement, check_tower, opened_run, reached, tower_class_of
from pipelines.elastic import Elastic
from pipelines.evaluate import metrics_of
from pipelines.job import Job, complete, dump_resolved, resolve
from pipelines.placing import with_shares_of
from pipelines.progress import Progress
from pipelines.recovery import Attempt, Recoveries
from pipelines.resume import Resume, ResumeFrom, find_start
from pipelines.run_summary import RunResult, summary_of
from pipelines.stopping import StopSignals
from pipelines.submitted import check_lasting, tell_of_short_stops
from pipelines.watching import Watcher, write_totals

_LOG = logging.getLogger(__name__)
MODEL = "model"


def fit(
    job: Job,
    *,
    run_folder: Path,
    progress: Progress,
    address: str | None = None,
    in_process: bool = False,
    resume: Resume = Resume.NO,
) -> Summary:
    """Train, score the test data, write the run's folder; see `Job.fit`.

    Raises UserError for what the user can mend, StoppedError for a run that was stopped, HeteroError for one that
    failed.
    """
    started_t = time.time()
    check_lasting(run_folder)
    tell_of_short_stops(job.run.stop_deadline_s)
    job = complete(job)
    spec = resolve(job)
    placement = Placement(in_process=in_process, address=address)
    tower = check_tower(spec, tower_class=tower_class_of(job.tower.name))
    train_data = DataPass.open(spec.train, phase=Phase.TRAIN, epochs=spec.epochs, max_steps=spec.max_steps)
    test_data = None if spec.test is None else DataPass.open(spec.test, phase=Phase.TEST)
    start = find_start(run_folder, resume=resume, job=spec, data=train_data)
    if start is None:
        _check_beginning(spec, tower)
    with (
        RunFolder.create(run_folder) if start is None else RunFolder.reopen(run_folder) as folder,
        EventLog(folder.events, run=folder.name, role="driver") as events,
    ):
        setup_logging(role="driver", file=folder.log)
        _tell_of_unfinished(folder)
        write_whole(folder.resolved_job, dump_resolved(job))
        events.event("run.started", job=job.name, placement=str(placement))
        watcher = Watcher(spec, folder=folder, events=events, progress=progress)
        if start is None and job.snapshots.folder is not None:
            folder.keep_snapshots_in(job.snapshots.folder)
        if start is not None:
            train_data = replace(train_data, start=start.cursor)
            watcher.resumed(start)
        try:
            result = _execute(
                job,
                spec,
                folder=folder,
                placement=placement,
                start=start,
                train=train_data,
                test=test_data,
                watcher=watcher,
                events=events,
                progress=progress,
            )
            baseline = None if job.baseline is None else train_baseline(job, test=test_data, progress=progress)
        except StoppedError as error:
            events.event("run.stopped", message=str(error))
            raise
        except BaseException as error:
            events.event("run.failed", error=type(error).__name__, message=str(error))
            raise
        np.save(folder.losses, result.outcome.losses)
        np.save(folder.step_ends, result.outcome.step_ends_t)
        summary = summary_of(
            job, result, folder=folder, placement=placement, start=start, baseline=baseline, started_t=started_t
        )
        write_totals(events, result.report)
        events.event("run.finished", auc=summary.auc, logloss=summary.logloss)
        summary.write(folder.summary)
        return summary


def _check_beginning(spec: JobSpec, tower: nn.Module) -> None:
    """Say at once where what the run is to begin with does not fit."""
    if spec.warm_start is not None:
        open_warm_start(spec)
    start_parts(tower, spec.tower)


def _execute(
    job: Job,
    spec: JobSpec,
    *,
    folder: RunFolder,
    placement: Placement,
    start: ResumeFrom | None,
    train: DataPass,
    test: DataPass | None,
    watcher: Watcher,
    events: EventLog,
    progress: Progress,
) -> RunResult:
    """Build the roles, train, score, save the model."""
    progress.phase("compiling kernels (cached for the next run)")
    seconds = warm_kernels(spec)
    _LOG.debug("kernels were ready after %.1f s", seconds)
    stop = StopSignals(deadline_s=job.run.stop_deadline_s)
    elastic = Elastic.of(job, spec, run=folder.name, placement=placement, events=events)
    recoveries = Recoveries(
        limit=job.run.recoveries,
        folder=folder,
        placement=placement,
        watcher=watcher,
        stopping=stop.asked,
        least=elastic.least,
    )
    with reached(spec, placement=placement):
        return recoveries.run(
            lambda attempt: _attempt(
                attempt,
                job,
                folder=folder,
                placement=placement,
                test=test,
                watcher=watcher,
                progress=progress,
                stop=stop,
                recovery=recoveries.log,
                elastic=elastic,
            ),
            first=Attempt(spec=spec, train=train, start=start),
        )


def _attempt(
    attempt: Attempt,
    job: Job,
    *,
    folder: RunFolder,
    placement: Placement,
    test: DataPass | None,
    watcher: Watcher,
    progress: Progress,
    stop: StopSignals,
    recovery: RecoveryLog,
    elastic: Elastic,
) -> RunResult | Counts:
    """The run from where it begins, or goes on, to its end, unless a role is lost or it goes on with other numbers."""
    start = attempt.start
    spec = attempt.spec if start is None else with_shares_of(attempt.spec, log=folder.shares, step=start.cursor.step)

    def look(now: RunProgress) -> None:
        watcher.look(now)
        recovery.reached(now.step, training=now.phase is Phase.TRAIN)
        if now.phase is Phase.TRAIN:
            elastic.look(now.step)

    def ends() -> bool:
        return stop.asked() or elastic.due()

    elastic.begin(spec)
    progress.phase(f"starting {Counts.of(spec)}, {placement}")
    tower_class = tower_class_of(job.tower.name)
    with opened_run(spec, name=folder.name, placement=placement, tower_class=tower_class, recovery=recovery) as run:
        _LOG.info("towers multiply matrices in %s", run.precision)
        begin_run(run, spec, start=start, progress=progress, watcher=watcher)
        watcher.begin(Phase.TRAIN, attempt.train.data)
        clear_drafts(folder.snapshots)
        folder.take_asked_servers()  # of a run before this one
        with stop:
            cut = SnapshotPlace(folder=folder.snapshots, told=watcher.note_snapshot, stop=ends)
            servers = ServersPlace(asked=folder.take_asked_servers, told=watcher.note_servers)
            outcome = run.train(attempt.train, watch=look, snapshots=cut, servers=elastic.beside(servers))
        if outcome.stopped:
            counts = elastic.take()
            if counts is not None and not stop.asked():
                return counts
            raise stop.error(_how_to_go_on(outcome, folder=folder))
        tiers = run.report().tiers if spec.storage else {}  # of training alone, before scoring and the model
        watcher.end(Phase.TRAIN)
        watcher.note_rejected(outcome)
        metrics, auc_bucketed = None, None
        if test is not None:
            watcher.begin(Phase.TEST, test.data)
            scores = run.score(test, watch=look)
            metrics, auc_bucketed = metrics_of(scores, ndcg_at=job.data.ndcg_at), scores.buckets.value()
            watcher.end(Phase.TEST)
        progress.phase("writing the model")
        run.save(folder.path / MODEL)
        return RunResult(
            outcome=replace(outcome, snapshots=tuple(watcher.snapshots)),
            went_on_from=start,
            recoveries=tuple(recovery.done),
            metrics=metrics,
            auc_bucketed=auc_bucketed,
            report=run.report(),
            tiers=tiers,
            malformed=watcher.malformed,
        )


def _tell_of_unfinished(folder: RunFolder) -> None:
    """A run that was moved aside and could have gone on is named."""
    if folder.moved_to is None or not RunFolder.is_run(folder.moved_to):
        return
    older = RunFolder.open(folder.moved_to)
    if not older.finished and list_snapshots(older.snapshots):
        _LOG.warning("an unfinished run lay here; it is in %s: `hetero resume` goes on with it", folder.moved_to)


def _how_to_go_on(outcome: TrainOutcome, *, folder: RunFolder) -> str:
    """What a stopped run tells."""
    latest = outcome.snapshots[-1] if outcome.snapshots else None
    if latest is None or latest.error is not None:
        why = f" ({latest.error})" if latest is not None else ""
        return f"stopped after step {len(outcome.losses)}, and no snapshot could be written{why}"
    return f"stopped after step {latest.step}, all of it in {latest.path}; go on with `hetero resume {folder.path}`"
