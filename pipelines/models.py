"""Models by the paths people give: a run's folder, its model, or one of its snapshots."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hetero.checkpoint.manifest import MANIFEST
from hetero.checkpoint.search import latest_good
from hetero.checkpoint.snapshot import Snapshot
from hetero.errors import UserError
from hetero.observe.run_folder import RESOLVED_JOB
from hetero.records import JobSpec
from pipelines.job import Job, load_job, resolve

MODEL = "model"
SNAPSHOTS = "snapshots"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model and the job that trained it. path: the folder of its snapshot. run: the run's folder."""

    path: Path
    run: Path
    job: Job
    spec: JobSpec

    @property
    def run_name(self) -> str:
        return self.run.resolve().name

    def snapshot(self) -> Snapshot:
        """Its manifest and files. Raises DataError when it is damaged."""
        return Snapshot.open(self.path)


def find_model(path: Path) -> Model:
    """The model at `path`: of a run's folder its final model, or its newest whole snapshot when it has none yet.

    The job is that of the run the folder lies in. Raises UserError when nothing of the kind is there.
    """
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"{path}: there is no such folder; give a run, its model or a snapshot, such as runs/demo")
    run = next((folder for folder in (path, *path.absolute().parents) if (folder / RESOLVED_JOB).is_file()), None)
    if run is None:
        raise UserError(
            f"{path}: no run is here or around it ({RESOLVED_JOB} is missing); give a run's folder, or a model or "
            "snapshot inside one"
        )
    job = load_job(run / RESOLVED_JOB)
    spec = replace(resolve(job), nodes=())  # where there is room: it may be another cluster than the one that trained
    return Model(path=path if run != path else _newest(path, spec), run=run, job=job, spec=spec)


def _newest(run: Path, spec: JobSpec) -> Path:
    if (run / MODEL / MANIFEST).is_file():
        return run / MODEL
    found = latest_good(run / SNAPSHOTS, job=spec)
    if found.good is None:
        told = "".join(f"; {finding.message}" for finding in found.findings[:3])
        raise UserError(f"{run}: has neither a finished model nor a whole snapshot{told}; train the job first")
    return Path(found.good.path)
