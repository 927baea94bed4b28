"""Score data with a trained model, row by row, to a Parquet file.

files -> batches -> rows -> predictions      the run's roles, no row created
predictions + columns kept -> Parquet        this process, in the order of the input
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hetero.data.filesystem import absolute, is_uri
from hetero.data.id_kinds import settled_features
from hetero.data.kept import KeptColumns
from hetero.data.malformed import CheckPoint, MalformedLog
from hetero.data.sources import check_schema, find_files, first_schema
from hetero.errors import UserError
from hetero.loops.predictions import EMBEDDING, PREDICTION, PredictionFile
from hetero.loops.protocols import Phase
from hetero.loops.results import ScoredPart
from hetero.loops.run import DataPass, RunProgress
from hetero.loops.warm import warm_kernels
from hetero.records import HOST_DEVICE, DataSpec
from pipelines.build import Placement, opened_run, tower_class_of
from pipelines.models import Model, find_model
from pipelines.resolve import data_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What was scored. rows: in the output. malformed: rows of the input left out. columns: of the output."""

    output: str
    model: str
    rows: int
    malformed: int
    columns: tuple[str, ...]
    mean_prediction: float | None
    seconds: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / max(self.seconds, 1e-9)

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "rows_per_s": self.rows_per_s}


def predict_run(
    model: Path,
    *,
    output: str,
    data: Sequence[str] | None = None,
    columns: Sequence[str] = (),
    address: str | None = None,
    in_process: bool = False,
    embeddings: bool = False,
    told: Callable[[int], None] = lambda rows: None,
) -> Predicted:
    """Score data with the model at `model` (see `find_model`) and write one row a good row, in the input's order.

    output: a path or URI, replaced only when all is scored. columns: of the input, to stand beside the predictions;
    the label stands there too when the data has one. data: paths; default, the job's test data. in_process: without
    Ray, in this process; otherwise with the job's roles on the cluster at `address`, or a local one.
    embeddings: a column `<text>_embedding` too for each text of the job: what its text half makes of it.
    told: gets the number of rows scored so far.
    Raises UserError for a model, column or output that cannot be, DataError for data that cannot be read or has too
    many malformed rows, HeteroError when the output cannot be written.
    """
    started = time.perf_counter()
    found = find_model(model)
    texts = tuple(text.name for text in found.spec.train.texts) if embeddings else ()
    if embeddings and not texts:
        raise UserError(f"--embeddings: the tower of {found.run} reads no texts (features.text), so it has none")
    scored = DataPass.open(_unlabelled(found, data), phase=Phase.TEST)
    kept = _kept(scored.data, columns, label=found.job.data.label)
    _refuse_own_input(output, scored.data)
    spec = found.spec
    if in_process:
        spec = replace(spec, towers=replace(spec.towers, count=1), device=HOST_DEVICE)
    warm_kernels(spec)
    placement = Placement(in_process=in_process, address=address)
    tower_class = tower_class_of(found.job.tower.name)
    malformed = _malformed_log(output, scored.data)
    with (
        PredictionFile(output, kept=kept, splits=scored.splits, towers=spec.towers.count, texts=texts) as file,
        opened_run(spec, name=f"{found.run_name}.predict", placement=placement, tower_class=tower_class) as run,
    ):

        def look(progress: RunProgress) -> None:
            malformed.add(progress.quality.malformed, rows_read=progress.quality.rows_read)
            file.note_malformed(progress.quality.malformed)
            malformed.check(CheckPoint.EARLY)

        def add(parts: Sequence[ScoredPart]) -> None:
            file.add(parts)
            told(file.rows)

        run.load(found.path)
        run.predict(scored, sink=add, watch=look, vectors=embeddings)
        malformed.check(CheckPoint.PASS_END)
        file.finish()
        return Predicted(
            output=file.path,
            model=str(found.path),
            rows=file.rows,
            malformed=malformed.malformed,
            columns=(*kept.schema.names, PREDICTION, *(text + EMBEDDING for text in texts)),
            mean_prediction=file.prediction_sum / file.rows if file.rows else None,
            seconds=time.perf_counter() - started,
        )


def _unlabelled(found: Model, data: Sequence[str] | None) -> DataSpec:
    """The data to be scored: features alone, with ids taken as the training data's were."""
    paths = found.job.data.test if data is None else tuple(data)
    if not paths:
        raise UserError(f"{found.run}: data.test: the job has no test data; give some with --data")
    spec = data_spec(found.job, paths, shuffle=False)
    settled = settled_features(found.spec.train)
    sparse = spec.sparse if settled is None else settled
    return replace(spec, label=None, weight=None, gauc_column=None, tasks=(), sparse=sparse)


def _kept(data: DataSpec, columns: Sequence[str], *, label: str) -> KeptColumns:
    wanted = tuple(dict.fromkeys(column for column in columns if column != label))
    known = label if label in columns or label in first_schema(data).names else None
    if PREDICTION in (*wanted, known):
        raise UserError(
            f"columns: the output's own column is called `{PREDICTION}`, so the input's cannot stand there too; "
            "rename it in the input, or leave it out"
        )
    kept = KeptColumns(data, columns=wanted, label=known)
    check_schema(kept.spec)
    return kept


def _refuse_own_input(output: str, data: DataSpec) -> None:
    if absolute(output) in {file.path for file in find_files(data)}:
        raise UserError(f"{output}: is among the files to be scored and would be overwritten; give another output")


def _malformed_log(output: str, data: DataSpec) -> MalformedLog:
    """Rows left out go beside a local output, to `<output>.malformed.jsonl`."""
    path = None
    if not is_uri(output):
        path = Path(absolute(output) + ".malformed.jsonl")
        path.unlink(missing_ok=True)
    return MalformedLog(path, max_fraction=data.max_malformed_fraction)
