"""Train a job to its end: the whole flow of a run.

files -> batches -> working sets -> rows -> loss -> gradients -> rows     hetero.loops, by the run's roles
test files -> scores -> metrics                                           the same roles, no row created
model, summary, losses -> the run's folder
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from hetero.checkpoint.pretrained import start_parts
from hetero.checkpoint.snapshot import list_snapshots
from hetero.checkpoint.warm_start import open_warm_start
from hetero.errors import StoppedError
from hetero.hardware.probe import library_versions, probe_machine
from hetero.loops.moves import ServersPlace
from hetero.loops.protocols import Phase
from hetero.loops.recovery import Counts, Recovery, RecoveryLog
from hetero.loops.run import DataPass, RunProgress, RunReport, TrainOutcome
from hetero.loops.snapshots import SnapshotPlace, clear_drafts
from hetero.loops.warm import warm_kernels
from hetero.metrics.report import MetricReport
from hetero.metrics.speed import SpeedReport
from hetero.observe.events import EventLog
from hetero.observe.logs import setup_logging
from hetero.observe.run_folder import RunFolder, write_whole
from hetero.observe.spans import merge_totals
from hetero.observe.summary import Baseline, Summary
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
from pipelines.stopping import StopSignals
from pipelines.submitted import check_lasting, tell_of_short_stops
from pipelines.watching import Watcher, write_totals

_LOG = logging.getLogger(__name__)
MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """What a run came to, before it is put in words. went_on_from: the snapshot that its last part began with."""

    outcome: TrainOutcome
    went_on_from: ResumeFrom | None
    recoveries: tuple[Recovery, ...]
    metrics: MetricReport | None
    auc_bucketed: float | None
    report: RunReport
    tiers: Mapping[str, int]
    malformed: int


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
    if start is None and spec.warm_start is not None:
        open_warm_start(spec)  # says at once what does not fit
    if start is None:
        start_parts(tower, spec.tower)  # likewise
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
        summary = _summary(
            job, result, folder=folder, placement=placement, start=start, baseline=baseline, started_t=started_t
        )
        write_totals(events, result.report)
        events.event("run.finished", auc=summary.auc, logloss=summary.logloss)
        summary.write(folder.summary)
        return summary


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
) -> _Result:
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
) -> _Result | Counts:
    """The run from where it begins, or goes on, to its end, unless a role is lost or it goes on with other numbers."""
    start = attempt.start
    spec = attempt.spec if start is None else with_shares_of(attempt.spec, log=folder.shares, step=start.cursor.step)

    def look(now: RunProgress) -> None:
        watcher.look(now)
        recovery.reached(now.step, training=now.phase is Phase.TRAIN)
        if now.phase is Phase.TRAIN:
            elastic.look(now.step)

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
            cut = SnapshotPlace(
                folder=folder.snapshots, told=watcher.note_snapshot, stop=lambda: stop.asked() or elastic.due()
            )
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
            metrics = metrics_of(scores, ndcg_at=job.data.ndcg_at)
            auc_bucketed = scores.buckets.value()
            watcher.end(Phase.TEST)
        progress.phase("writing the model")
        run.save(folder.path / MODEL)
        return _Result(
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


def _summary(
    job: Job,
    result: _Result,
    *,
    folder: RunFolder,
    placement: Placement,
    start: ResumeFrom | None,
    baseline: Baseline | None,
    started_t: float,
) -> Summary:
    outcome, metrics, report = result.outcome, result.metrics, result.report
    rejected = {"rows": outcome.rejected_rows, **{f"dense/{name}": n for name, n in outcome.rejected_dense.items()}}
    since = result.went_on_from
    before = 0 if since is None else since.cursor.rows  # waits are known since the run was resumed
    speed = SpeedReport.of(
        samples=outcome.rows - before,
        seconds=outcome.training_s - outcome.earlier_s,
        towers=len(report.towers),
        waits=outcome.waits,
    )
    return Summary(
        name=job.name,
        run_folder=str(folder.path),
        seed=job.seed,
        placement=str(placement),
        steps=len(outcome.losses),
        samples=outcome.rows,
        samples_per_s=outcome.rows / outcome.training_s if outcome.training_s else 0.0,
        wall_s=time.time() - started_t,
        auc=metrics.auc if metrics else None,
        logloss=metrics.logloss if metrics else None,
        normalized_entropy=metrics.normalized_entropy if metrics else None,
        calibration=metrics.calibration if metrics else None,
        gauc=metrics.gauc if metrics else None,
        ndcg=metrics.ndcg if metrics else None,
        ndcg_at=metrics.ndcg_at if metrics and metrics.ranked_groups is not None else None,
        mrr=metrics.mrr if metrics else None,
        auc_bucketed=result.auc_bucketed,
        test_samples=metrics.rows if metrics else 0,
        final_loss=float(outcome.losses[-1]) if len(outcome.losses) else None,
        time_to_first_step_s=outcome.first_step_t - started_t if outcome.first_step_t else None,
        precision=report.precision.to_dict(),
        devices=tuple(tower.device for tower in report.towers),
        window=report.window.to_dict() if report.window else {},
        wait_fraction=1.0 - speed.efficiency if speed else 0.0,
        speed=speed.to_dict() if speed else {},
        cpu_s=outcome.cpu_s,
        seconds=merge_totals(role.spans for role in report.towers).by_name(),
        waits={role.name: role.spans.waits for role in report.roles if role.spans.waits},
        rows=report.rows,
        mode=job.train.mode,
        staleness=report.staleness.record(),
        snapshots=_snapshots(outcome, start=start),
        servers=tuple(asdict(change) for change in outcome.servers),
        recoveries=tuple(recovery.to_dict() for recovery in result.recoveries),
        bytes=report.traffic,
        peak_rss_bytes={role.name: role.peak_rss_bytes for role in report.roles},
        tiers=tiers_record(result.tiers, samples=outcome.rows - before),
        policies=report.policies,
        object_store=asdict(report.store) if report.store else {},
        predicted_samples_per_s=job.run.predicted,
        nodes=report.nodes,
        malformed=result.malformed,
        rejected_gradients={name: count for name, count in rejected.items() if count},
        warnings=_warnings(outcome, metrics, report),
        losses=folder.losses.name,
        step_ends=folder.step_ends.name,
        baseline=baseline,
        versions=library_versions(),
        hardware=probe_machine(disk_path=folder.path).to_dict(),
    )


def tiers_record(counts: Mapping[str, int], *, samples: int) -> dict[str, float]:
    """Counts of the servers' tiers as a summary holds them, with what they come to; empty without SSD."""
    if not counts:
        return {}
    found = counts["memory_hits"] + counts["ssd_hits"]
    return {
        **counts,
        "memory_hit_rate": counts["memory_hits"] / max(found, 1),
        "disk_read_bytes_per_sample": counts["disk_read_bytes"] / max(samples, 1),
        "disk_written_bytes_per_sample": counts["disk_written_bytes"] / max(samples, 1),
        "write_amplification": counts["disk_written_bytes"] / max(counts["evicted_bytes"], 1),
    }


def _snapshots(outcome: TrainOutcome, *, start: ResumeFrom | None) -> dict[str, object]:
    """What the summary says of snapshots; nothing where none was taken and none gone on from."""
    taken = [report for report in outcome.snapshots if report.error is None]
    if not outcome.snapshots and start is None:
        return {}
    return {
        "resumed_from": start.cursor.step if start is not None else None,
        "written": len(taken),
        "failed": len(outcome.snapshots) - len(taken),
        "pause_s": sum(report.pause_s for report in outcome.snapshots),
        "longest_pause_s": max((report.pause_s for report in outcome.snapshots), default=0.0),
        "write_s": sum(report.write_s for report in taken),
        "bytes": taken[-1].bytes if taken else 0,
        "latest": taken[-1].path if taken else None,
    }


def _warnings(outcome: TrainOutcome, metrics: MetricReport | None, report: RunReport) -> tuple[str, ...]:
    found = [warning.message for warning in metrics.warnings] if metrics else []
    if report.store and report.store.spilled_bytes:
        found.append(
            f"error: the object store spilled {report.store.spilled_bytes:,} bytes to disk, which slows every role; "
            "give Ray more object store memory, or lower train.batch_size or train.window_bytes"
        )
    found += [
        f"the snapshot of step {report.step} could not be written: {report.error}"
        for report in outcome.snapshots
        if report.error is not None
    ]
    found += [
        f"{change.after} servers were wanted after step {change.step}, {change.before} stayed: {change.error}"
        for change in outcome.servers
        if change.error is not None
    ]
    if outcome.rejected_rows:
        names = ", ".join(f"{e.table} key {e.key} in step {e.step}" for e in outcome.rejected_examples[:3])
        found.append(f"{outcome.rejected_rows} row gradients were not finite and were not applied: {names}")
    found += [
        f"the gradient of {name} was not finite in {steps} steps, in which no dense parameter was changed"
        for name, steps in outcome.rejected_dense.items()
    ]
    return tuple(found)
