"""What a run begins with: a snapshot of its own, another's rows, pretrained parts, or nothing."""

from __future__ import annotations

from hetero.loops.run import TrainingRun
from hetero.records import JobSpec
from pipelines.progress import Progress
from pipelines.resume import ResumeFrom
from pipelines.watching import Watcher


def begin_run(
    run: TrainingRun, spec: JobSpec, *, start: ResumeFrom | None, progress: Progress, watcher: Watcher
) -> None:
    """Take up what the run begins with, before its first step."""
    if start is not None:
        progress.phase(f"taking up the snapshot of step {start.cursor.step}")
        run.restore(start.snapshot)
        return
    if spec.warm_start is not None:
        progress.phase(f"warm start from {spec.warm_start.path}")
        watcher.warm_started(run.warm_start(), path=spec.warm_start.path)
    for part in run.start_parts():
        watcher.part_started(part)
