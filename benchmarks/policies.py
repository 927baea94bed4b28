"""Policies beside each other: memory saved and AUC lost by admission and eviction, on Criteo-like data of Zipf ids.

    python -m benchmarks.policies [--quick] [--json] [--save]

The examples' DLRM in one process, one pass over 2 M rows in batches of 4096, windows of 8 steps; --quick: 200,000 rows
in batches of 1024. A day is a tenth of the steps. Memory is that of the servers: rows, index, and
what is noted of keys that have no row. Made data has ids drawn independently of the day, so nothing ever goes out of
fashion here: what eviction loses on it is an upper bound.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Report, arguments, finish
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass, RunReport
from hetero.loops.warm import warm_kernels
from hetero.metrics.ranking import DEFAULT_K
from pipelines.build import Placement, opened_run
from pipelines.evaluate import metrics_of
from pipelines.job import load_job
from pipelines.resolve import complete, resolve
from pipelines.synthetic import CriteoLike, Made, make_criteo_like

EXAMPLE = Path(__file__).parents[1] / "examples" / "criteo_like_dlrm.yaml"
DATA = Path("data/benchmarks")
WINDOW = 8
EVERY = "every key at once"
WEIGHTS, LAZY = "with weights of dim 1 beside", "with weights, vectors from score 0.3 on"
WIDE = "{name: wide, dim: 1, optimizer: {name: rowwise_adagrad, lr: 0.01}}"
DEEP = "name: deep, dim: 16, optimizer: {name: rowwise_adagrad, lr: 0.01}"
POLICIES: Mapping[str, tuple[str, ...]] = {
    EVERY: (),
    "admitted when seen in 2 steps": ("tables[0].admission={after: 2}",),
    "admitted when seen in 3 steps": ("tables[0].admission={after: 3}",),
    "admitted when seen in 5 steps": ("tables[0].admission={after: 5}",),
    "admitted with probability 0.3": ("tables[0].admission={probability: 0.3}",),
    WEIGHTS: (f"tables=[{WIDE}, {{{DEEP}}}]",),
    LAZY: (f"tables=[{WIDE}, {{{DEEP}, admission: {{score: 0.3}}}}]",),
    "dropped below score 0.25 each day": ("tables[0].eviction={min_score: 0.25}",),
    "seen in 2 steps, and dropped below 0.25": (
        "tables[0].admission={after: 2, forget_days: 1}",
        "tables[0].eviction={min_score: 0.25}",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much a run trains on. day_steps: a tenth of its steps."""

    rows: int
    batch: int

    @property
    def day_steps(self) -> int:
        return self.rows // self.batch // 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a run came to. memory_bytes: of its servers."""

    auc: float
    rows: int
    memory_bytes: int
    waiting: int
    samples_per_s: float


def main() -> int:
    options = arguments(__doc__ or "")
    size = Size(rows=200_000, batch=1024) if options.quick else Size(rows=2_000_000, batch=4096)
    made = make_criteo_like(
        DATA / f"criteo-like-{size.rows}", recipe=CriteoLike(rows=size.rows), progress=lambda _: None
    )
    report = Report("policies")
    runs = {name: trained(name, made, size, settings) for name, settings in POLICIES.items()}
    whole = runs[EVERY]
    for name, run in runs.items():
        report.add(
            policy=name,
            rows=run.rows,
            memory_MB=run.memory_bytes / 1e6,
            memory_saved=1 - run.memory_bytes / whole.memory_bytes,
            auc=f"{run.auc:.5f}",
            auc_lost=f"{whole.auc - run.auc:+.5f}",
            keys_waiting=run.waiting,
            samples_per_s=run.samples_per_s,
        )
    twice = runs["admitted when seen in 2 steps"]
    saved = 1 - twice.memory_bytes / whole.memory_bytes
    report.check("admission when seen in 2 steps: share of memory saved", saved, at_least=0.3)
    report.check("admission when seen in 2 steps: AUC lost", whole.auc - twice.auc, at_most=0.005)
    beside, lazy = runs[WEIGHTS], runs[LAZY]
    saved = 1 - lazy.memory_bytes / beside.memory_bytes
    report.check(f"{LAZY}: share of memory saved, of {WEIGHTS}", saved, at_least=0.2)
    report.check(f"{LAZY}: AUC lost", beside.auc - lazy.auc, at_most=0.005)
    return finish(report, options)


def trained(name: str, made: Made, size: Size, settings: Sequence[str]) -> Trained:
    """One pass over the training rows under a policy, and the test rows scored."""
    print(f"training: {name}", file=sys.stderr, flush=True)
    overrides = (
        f"data.train={made.train.absolute()}",
        f"data.test={made.test.absolute()}",
        f"train.batch_size={size.batch}",
        f"train.window={WINDOW}",
        f"train.day_steps={size.day_steps}",
        *settings,
    )
    spec = resolve(complete(load_job(EXAMPLE, overrides=overrides)))
    assert spec.test is not None
    warm_kernels(spec)
    with opened_run(spec, name="policies", placement=Placement(in_process=True)) as run:
        outcome = run.train(DataPass.open(spec.train, phase=Phase.TRAIN), watch=lambda _: None)
        scores = run.score(DataPass.open(spec.test, phase=Phase.TEST), watch=lambda _: None)
        metrics = metrics_of(scores, ndcg_at=DEFAULT_K)
        told: RunReport = run.report()
    if metrics.auc is None:
        raise ValueError("the test rows have one class only, so there is no AUC to compare")
    return Trained(
        auc=metrics.auc,
        rows=sum(told.rows.values()),
        memory_bytes=sum(server.memory_bytes for server in told.servers),
        waiting=told.policies.get("waiting", 0),
        samples_per_s=outcome.rows / outcome.training_s,
    )


if __name__ == "__main__":
    sys.exit(main())
