"""Write a trained model to a folder that scores without Ray and without the training code."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path

from hetero.checkpoint.export import export_model
from hetero.checkpoint.tensors import read_module
from hetero.data.id_kinds import settled_features
from hetero.records import IdKind
from hetero.towers.build import make_tower
from pipelines.build import check_tower, tower_class_of
from pipelines.models import find_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written. tables: rows by table. bytes: of all files. warnings: what to mind when it is used."""

    folder: str
    model: str
    step: int
    tables: dict[str, int]
    bytes: int
    seconds: float
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def export_run(model: Path, *, output: Path) -> Exported:
    """Export the model at `model` (see `find_model`) to the new folder `output`, in float32.

    Raises UserError when the folder exists or there is no model, TowerError for a tower that no graph can hold,
    DataError for a damaged model, HeteroError when the disk refuses.
    """
    started = time.perf_counter()
    found = find_model(model)
    tower_class = tower_class_of(found.job.tower.name)
    check_tower(found.spec, tower_class=tower_class)
    module = make_tower(found.spec, tower_class=tower_class)
    snapshot = found.snapshot()
    read_module(module, snapshot)
    settled = settled_features(found.spec.train)
    written = export_model(module, found.spec, snapshot, folder=output, sparse=settled)
    return Exported(
        folder=str(output),
        model=str(found.path),
        step=written.step,
        tables={table.name: table.rows for table in written.tables},
        bytes=sum(file.bytes for file in written.files.values()),
        seconds=time.perf_counter() - started,
        warnings=() if settled is not None else (_unsettled([f.name for f in written.sparse if f.ids is IdKind.AUTO]),),
    )


def _unsettled(names: list[str]) -> str:
    return (
        f"the training data is not there any more, so the ids of {', '.join(names)} go by the type of the column that "
        "is given: integers are keys, text is hashed; give what the training files held"
    )
