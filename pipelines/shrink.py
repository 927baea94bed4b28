"""Drop rows from a trained model or a snapshot as its tables' policies say, without training."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from hetero.checkpoint.shrink import shrink
from hetero.errors import UserError
from pipelines.models import find_model
from pipelines.policy_view import model_day


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkReport:
    """dropped: rows by table and reason. rows: those left. folder: of the new model, None where it was only counted."""

    model: str
    folder: str | None
    model_day: int
    day: int
    dropped: dict[str, dict[str, int]]
    rows: dict[str, int]

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def shrink_model(model: Path, *, output: Path | None, day: int | None = None) -> ShrinkReport:
    """Write the model at `model` (see `find_model`) to the new folder `output` without the rows that go on a day.

    day: default, the one after the model's last. output: inside the model's run, whose job it needs; None only counts.
    Raises UserError for a job whose tables drop nothing, a day that is over, or a folder that exists or lies elsewhere;
    DataError for a damaged model.
    """
    found = find_model(model)
    clock = found.spec.clock
    if clock is None or not any(group.eviction or group.admission for group in found.spec.groups):
        raise UserError(f"{model}: no table of {found.job.name} has a policy that drops rows; give tables[*].eviction")
    snapshot = found.snapshot()
    last = model_day(snapshot, clock)
    if day is not None and day <= last:
        raise UserError(f"--day {day}: the model has trained up to day {last}; give a later one")
    if output is not None:
        if output.exists():
            raise UserError(f"--out {output}: is there already; give a new folder")
        if found.run.resolve() not in output.resolve().parents:
            raise UserError(
                f"--out {output}: a model needs its run's job beside it; give a folder inside {found.run}, such as "
                f"{found.run / 'shrunk'}"
            )
    day = last + 1 if day is None else day
    shrunk = shrink(snapshot, found.spec, day=day, target=output)
    dropped: dict[str, dict[str, int]] = {}
    for (table, reason), rows in sorted(shrunk.dropped.items()):
        dropped.setdefault(table, {})[reason] = rows
    return ShrinkReport(
        model=str(found.path),
        folder=None if shrunk.snapshot is None else shrunk.snapshot.path,
        model_day=last,
        day=day,
        dropped=dropped,
        rows=shrunk.rows,
    )
