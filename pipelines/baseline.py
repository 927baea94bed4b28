"""The baseline of a job: a simple tower beside its own, so that the summary can say what the tower is worth."""

from __future__ import annotations

import time
from dataclasses import replace

from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass
from hetero.loops.warm import warm_kernels
from hetero.observe.summary import Baseline
from hetero.records import HOST_DEVICE
from pipelines.build import Placement, opened_run
from pipelines.evaluate import metrics_of
from pipelines.job import Job, baseline_job, resolve
from pipelines.progress import Progress


def train_baseline(job: Job, *, test: DataPass | None, progress: Progress) -> Baseline | None:
    """The simple tower on the same features, split, seed and epochs, in this process."""
    if test is None:
        return None
    started_t = time.time()
    progress.phase(f"training the baseline, {job.baseline}")
    plain = baseline_job(job)
    spec = resolve(plain)
    one_tower, one_server = replace(spec.towers, count=1), replace(spec.servers, count=1)
    spec = replace(spec, towers=one_tower, servers=one_server, device=HOST_DEVICE)
    train = DataPass.open(spec.train, phase=Phase.TRAIN, epochs=spec.epochs, max_steps=spec.max_steps)
    warm_kernels(spec)
    with opened_run(spec, name=plain.name, placement=Placement(in_process=True)) as run:
        run.train(train, watch=lambda _: None)
        metrics = metrics_of(run.score(test, watch=lambda _: None), ndcg_at=job.data.ndcg_at)
    return Baseline(name=plain.tower.name, auc=metrics.auc, logloss=metrics.logloss, seconds=time.time() - started_t)
