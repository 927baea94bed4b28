"""A job: what to train on what, as a person writes it. `resolve` turns it into the `JobSpec` that roles are built from.

job = Job(
    name="clicks",
    data={"train": "day0.parquet", "test": "day1.parquet", "label": "click"},
    features={"sparse": [{"name": "user"}, {"name": "item"}]},
    tables=[{"name": "wide", "dim": 1}, {"name": "deep", "dim": 16}],
    tower={"name": "wide_and_deep", "args": {"hidden": [64, 32]}},
)
summary = job.fit()
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, Strict, ValidationError, model_validator

from hetero.errors import JobError
from hetero.observe.summary import Scores, Summary
from hetero.records import Pooling
from pipelines.checks import check
from pipelines.job_yaml import dump_yaml, read_yaml
from pipelines.overrides import apply_overrides
from pipelines.problems import ListedJobError, job_problems, translate
from pipelines.resolve import anchor, complete, resolve
from pipelines.run_schema import Roles, Run, Snapshots, Storage, WarmStart
from pipelines.schema import Data, Features, Sparse, Table, Tower, Train
from pipelines.submitted import RAY_ADDRESS
from pipelines.values import Name, Section

if TYPE_CHECKING:
    from pipelines.progress import Progress

__all__ = ["Job", "baseline_job", "complete", "dump_resolved", "load_job", "resolve", "with_counts"]


class Job(Section):
    """The whole job file. Sections may be given as their classes or as mappings of the same names.

    seed: of first values, shuffling and dropout. baseline: a simple tower to train beside it on the same features
    and split, so that the summary can say what the tower is worth. Raises JobError, listing everything wrong.
    """

    name: Name
    seed: Annotated[int, Strict(), Field(ge=0, lt=1 << 63)] = 0
    data: Data
    features: Features
    tables: tuple[Table, ...] = ()
    tower: Tower
    train: Train = Train()
    roles: Roles = Roles()
    storage: Storage = Storage()
    run: Run = Run()
    snapshots: Snapshots = Snapshots()
    warm_start: WarmStart | None = None
    baseline: Literal["logistic_regression"] | None = None

    def __init__(self, **sections: Any) -> None:
        try:
            super().__init__(**sections)
        except ValidationError as error:
            raise job_problems(translate(error, model=Job, raw=sections)) from None

    @model_validator(mode="after")
    def _agree(self) -> Job:
        filled = tuple(self._with_tables(feature) for feature in self.features.sparse)
        self.__dict__["features"] = self.features.model_copy(update={"sparse": filled})
        self.__dict__["run"] = self.run.model_copy(update={"folder": self.run.folder or f"runs/{self.name}"})
        problems = check(self)
        if problems:
            raise job_problems(problems)
        return self

    def _with_tables(self, feature: Sparse) -> Sparse:
        if feature.tables is not None:
            return feature
        sequence = feature.pooling is Pooling.NONE
        names = tuple(table.name for table in self.tables if table.dim > 1 or not sequence)
        return feature.model_copy(update={"tables": names})

    def fit(
        self,
        *,
        run_folder: Path | str | None = None,
        address: str | None = None,
        in_process: bool = False,
        resume: bool = False,
        progress: Progress | None = None,
    ) -> Summary:
        """Train, evaluate on the test data, and write the run's folder.

        run_folder: default, run.folder of the job. address: of a running Ray cluster; default, the one that RAY_ADDRESS
        names, as in jobs of `ray job submit`, else one in this process.
        in_process: every role in this process, without Ray. resume: go on from the newest whole snapshot in the run's
        folder, if there is one. progress: gets what `pipelines.progress` describes.
        """
        from pipelines.progress import Silent
        from pipelines.resume import Resume
        from pipelines.train import fit

        return fit(
            self,
            run_folder=Path(run_folder or self.run.folder),
            address=address if address is not None or in_process else os.environ.get(RAY_ADDRESS),
            in_process=in_process,
            resume=Resume.IF_THERE if resume else Resume.NO,
            progress=progress or Silent(),
        )

    def evaluate(self, *, run_folder: Path | str | None = None, data: Sequence[str] | None = None) -> Scores:
        """Score the model of this job's run. data: paths; default, the job's test data."""
        from pipelines.evaluate import evaluate_run

        return evaluate_run(Path(run_folder or self.run.folder), data=data)


def with_counts(job: Job, *, readers: int | None = None, servers: int | None = None, towers: int | None = None) -> Job:
    """The job with other numbers of actors; their threads stay. A number of servers holds to the end: a schedule of
    theirs is left out. Raises JobError when the numbers do not fit the job."""
    counts = {"readers": readers, "servers": servers, "towers": towers}
    changed = {
        name: getattr(job.roles, name).model_copy(update={"count": count})
        for name, count in counts.items()
        if count is not None
    }
    if servers is not None:
        changed["servers"] = changed["servers"].model_copy(update={"schedule": ()})
    sections = {name: getattr(job, name) for name in Job.model_fields}
    return Job(**{**sections, "roles": job.roles.model_copy(update=changed)})


def load_job(path: Path | str, *, overrides: Sequence[str] = ()) -> Job:
    """Read a job file, with `a.b[0].c=VALUE` overrides put over it. Values are YAML: `train.batch_size=8192`.

    Relative data paths that are only found beside the job file are rewritten to be found from here.
    Raises JobError, which says for every problem its path in the job and the line or override it came from.
    """
    raw, origins = read_yaml(Path(path))
    raw, origins = apply_overrides(raw, overrides, origins=origins)
    strange = [key for key in raw if not isinstance(key, str)]
    if strange:
        raise JobError(f"{path}: the name `{strange[0]}` is no text; put it in quotes")
    try:
        return anchor(Job(**raw), folder=Path(path).parent)
    except ListedJobError as error:
        found = job_problems(error.problems, origins=origins)
        count = f"{len(error.problems)} errors" if len(error.problems) > 1 else "1 error"
        raise JobError(f"{found}\n{count} in {path}") from None


def dump_resolved(job: Job) -> str:
    """The job as YAML with every default written out; loading it gives an equal job."""
    return dump_yaml(job.model_dump(mode="json", by_alias=True))


def baseline_job(job: Job) -> Job:
    """The job of `baseline`: one weight for every value of every feature (a sequence: the mean of its values'), trained
    on the same split with the same seed, batches and epochs.

    Its row optimizer is that of the job's first table of dim 1; without one, FTRL at its defaults.
    Raises JobError when the job has no baseline.
    """
    if job.baseline is None:
        raise JobError("baseline: the job has none; set it to `logistic_regression`")
    linear = next((table for table in job.tables if table.dim == 1), None)
    optimizer: Mapping[str, object] = linear.optimizer.model_dump() if linear else {"name": "ftrl"}
    raw = job.model_dump(mode="json", by_alias=True)
    for feature in raw["features"]["sparse"]:
        feature.update(tables=["linear"], keys_as=None)
        feature["pooling"] = "mean" if feature["pooling"] == "none" else feature["pooling"]
    raw["tables"] = [{"name": "linear", "dim": 1, "optimizer": optimizer}] if raw["features"]["sparse"] else []
    raw["tower"] = {"name": job.baseline, "optimizer": raw["tower"]["optimizer"]}
    raw["features"]["text"], raw["data"]["tasks"] = [], []
    raw["storage"] = {}
    raw["roles"]["servers"]["schedule"] = []
    raw["roles"]["nodes"] = []
    raw["roles"]["towers"]["shares"] = {}
    raw["train"].update(mode="sync", staleness=None, geo_scale=None)
    raw.update(name=f"{job.name}.baseline", baseline=None, warm_start=None)
    raw["run"]["folder"] = f"{job.run.folder}/baseline"
    return Job(**raw)
