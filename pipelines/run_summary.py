"""What a run came to, in the words and figures of its summary."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hetero.hardware.probe import library_versions, probe_machine
from hetero.loops.recovery import Recovery
from hetero.loops.run import RunReport, TrainOutcome
from hetero.metrics.report import MetricReport
from hetero.metrics.speed import SpeedReport
from hetero.observe.run_folder import RunFolder
from hetero.observe.spans import merge_totals
from hetero.observe.summary import Baseline, Summary
from pipelines.build import Placement
from pipelines.job import Job
from pipelines.resume import ResumeFrom


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run came to, before it is put in words. went_on_from: the snapshot that its last part began with."""

    outcome: TrainOutcome
    went_on_from: ResumeFrom | None
    recoveries: tuple[Recovery, ...]
    metrics: MetricReport | None
    auc_bucketed: float | None
    report: RunReport
    tiers: Mapping[str, int]
    malformed: int


def summary_of(
    job: Job,
    result: RunResult,
    *,
    folder: RunFolder,
    placement: Placement,
    start: ResumeFrom | None,
    baseline: Baseline | None,
    started_t: float,
) -> Summary:
    """The summary of a run that came to its end. started_t: seconds since the epoch."""
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
        **_scores(metrics),
        auc_bucketed=result.auc_bucketed,
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


def _scores(metrics: MetricReport | None) -> dict[str, Any]:
    """A summary's metrics of the test data; none without any."""
    names = ("auc", "logloss", "normalized_entropy", "calibration", "gauc", "ndcg", "mrr")
    if metrics is None:
        return {**dict.fromkeys(names), "ndcg_at": None, "test_samples": 0}
    ranked_at = metrics.ndcg_at if metrics.ranked_groups is not None else None
    return {**{name: getattr(metrics, name) for name in names}, "ndcg_at": ranked_at, "test_samples": metrics.rows}


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
