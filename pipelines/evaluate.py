"""Score data with the model a run left behind."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hetero.errors import UserError
from hetero.loops.protocols import Phase
from hetero.loops.results import Scores as TowerScores
from hetero.loops.run import DataPass
from hetero.loops.warm import warm_kernels
from hetero.metrics.report import MetricReport, evaluate_predictions
from hetero.observe.run_folder import RunFolder
from hetero.observe.summary import Scores
from hetero.records import HOST_DEVICE
from pipelines.build import Placement, opened_run, tower_class_of
from pipelines.job import load_job, resolve
from pipelines.models import MODEL
from pipelines.resolve import data_spec


def evaluate_run(
    run_folder: Path,
    *,
    data: Sequence[str] | None = None,
    address: str | None = None,
    in_process: bool = True,
) -> Scores:
    """Score data with the model in a run's folder; nothing in the folder changes.

    data: paths; default, the job's test data. in_process: without Ray, in this process; otherwise with the job's roles
    on the cluster at `address`, or a local one.
    Raises UserError for a folder without a finished run or a job without test data, DataError for data or a model
    that cannot be read.
    """
    started = time.perf_counter()
    folder = RunFolder.open(run_folder)
    job = load_job(folder.resolved_job)
    spec = resolve(job)
    wanted = spec.test if data is None else data_spec(job, data, shuffle=False)
    if wanted is None:
        raise UserError(f"{folder.resolved_job}: data.test: the job has no test data; give some with --data")
    scored = DataPass.open(wanted, phase=Phase.TEST)
    spec = replace(spec, nodes=())  # where there is room: it may be another cluster than the one that trained
    if in_process:
        spec = replace(spec, towers=replace(spec.towers, count=1), device=HOST_DEVICE)
    warm_kernels(spec)
    placement = Placement(in_process=in_process, address=address)
    tower_class = tower_class_of(job.tower.name)
    with opened_run(spec, name=f"{folder.name}.evaluate", placement=placement, tower_class=tower_class) as run:
        run.load(folder.path / MODEL)
        scores = run.score(scored, watch=lambda _: None)
    metrics = metrics_of(scores, ndcg_at=job.data.ndcg_at)
    return Scores(
        auc=metrics.auc,
        logloss=metrics.logloss,
        samples=metrics.rows,
        normalized_entropy=metrics.normalized_entropy,
        calibration=metrics.calibration,
        gauc=metrics.gauc,
        ndcg=metrics.ndcg,
        ndcg_at=metrics.ndcg_at if metrics.ranked_groups is not None else None,
        mrr=metrics.mrr,
        auc_bucketed=scores.buckets.value(),
        seconds=time.perf_counter() - started,
        warnings=tuple(warning.message for warning in metrics.warnings),
    )


def metrics_of(scores: TowerScores, *, ndcg_at: int) -> MetricReport:
    """Metrics of a run's predictions."""
    return evaluate_predictions(
        scores.labels, scores.predictions, weights=scores.weights, gauc_ids=scores.gauc_ids, k=ndcg_at
    )
