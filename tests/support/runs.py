"""Short runs of a job, in this process or on Ray, for comparing their losses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hetero.loops.protocols import Phase
from hetero.loops.results import Scores
from hetero.loops.run import DataPass, RunReport, TrainingRun, TrainOutcome
from hetero.records import JobSpec
from pipelines.build import Placement, opened_run

_NUMBERS = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What a run came to."""

    outcome: TrainOutcome
    scores: Scores | None
    report: RunReport


@contextmanager
def alive(job: JobSpec, *, in_process: bool) -> Iterator[TrainingRun]:
    """The job's roles under a name no other run of the test session has."""
    placement = Placement(in_process=in_process)
    with opened_run(job, name=f"test-{next(_NUMBERS)}", placement=placement) as run:
        yield run


def finish(job: JobSpec, *, in_process: bool, score: bool = False) -> Finished:
    """Train on job.train to the end; score job.train too when asked."""
    with alive(job, in_process=in_process) as run:
        data = DataPass.open(job.train, phase=Phase.TRAIN, epochs=job.epochs, max_steps=job.max_steps)
        outcome = run.train(data, watch=lambda _: None)
        scores = run.score(DataPass.open(job.train, phase=Phase.TEST), watch=lambda _: None) if score else None
        return Finished(outcome=outcome, scores=scores, report=run.report())
