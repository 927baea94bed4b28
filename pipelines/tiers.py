"""Predict what budgets of memory come to for a job, and compare with what a run measured."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hetero.errors import UserError
from hetero.keys.windows import TowerWindow
from hetero.loops.key_trace import windows_of_data, windows_of_zipf
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass
from hetero.observe.run_folder import RESOLVED_JOB, SUMMARY
from hetero.observe.summary import Summary
from hetero.planning.tiers import TierPrediction, simulate_tiers
from hetero.records import AUTO_WINDOW, JobSpec, StorageSpec
from pipelines.job import Job, load_job, resolve
from pipelines.report import size

SAMPLE_ROWS = 200_000
"""About so many rows take part when nobody says how large a sample is to be: enough for a rate to within a point."""

DEFAULT_WINDOW = 8
DEFAULT_SSD_BYTES = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ZipfTrace:
    """A made trace instead of the job's data: see `hetero.loops.key_trace.windows_of_zipf`."""

    exponent: float
    distinct: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStudy:
    """predictions: by budget. measured: of the run that was asked about, by the same names; empty without one."""

    job: str
    trace: str
    window: int
    servers: int
    sample: float
    predictions: tuple[TierPrediction, ...]
    measured: dict[str, float]

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    def shown(self) -> RenderableType:
        return study_table(self)


def study_tiers(
    path: Path,
    *,
    memory: Sequence[int] = (),
    ssd_bytes: int | None = None,
    steps: int | None = None,
    window: int | None = None,
    sample: float | None = None,
    zipf: ZipfTrace | None = None,
    overrides: Sequence[str] = (),
) -> TierStudy:
    """Predict for the job file or finished run at `path`.

    memory: budgets of one server in bytes; default, the job's. A run's own budget is always among them, and its summary
    gets the prediction beside what was measured. steps: of training; default, the job's. window: default, the run's or
    the job's, 8 for `auto`. sample: share of the keys; default, what makes about SAMPLE_ROWS rows. Raises UserError
    where there is no budget to ask about, and as `simulate_tiers` does.
    """
    summary = Summary.read(path / SUMMARY) if (path / SUMMARY).is_file() else None
    job = load_job(path / RESOLVED_JOB if path.is_dir() else path, overrides=overrides)
    spec = resolve(job, folder=path.parent)
    window = _window(job, spec, summary) if window is None else window
    spec = replace(spec, window=window, max_steps=spec.max_steps if steps is None else steps)
    own = [] if spec.storage is None else [spec.storage.memory_bytes]
    wanted = [*own, *memory] if summary is not None and summary.tiers else list(memory) or own
    if not wanted:
        raise UserError(f"{path}: the job has no budget of memory; give --memory 8GiB, or storage.memory_bytes")
    ssd = ssd_bytes or (spec.storage.ssd_bytes if spec.storage else DEFAULT_SSD_BYTES)
    budgets = [StorageSpec(memory_bytes=bytes_, directories=(), ssd_bytes=ssd) for bytes_ in dict.fromkeys(wanted)]
    traced = replace(spec, window=max(1, window))
    if sample is None:
        sample = _fitting_sample(_distinct(_trace(traced, zipf)))
    predictions = simulate_tiers(spec, _trace(traced, zipf), budgets=budgets, sample=sample)
    study = TierStudy(
        job=spec.name,
        trace=_told(zipf),
        window=window,
        servers=spec.servers.count,
        sample=sample,
        predictions=predictions,
        measured={} if summary is None else dict(summary.tiers),
    )
    if summary is not None and summary.tiers and zipf is None:
        _note(path / SUMMARY, summary, predictions[0])
    return study


def plot_study(study: TierStudy, path: Path) -> None:
    """Hit rates and reads by budget, as self-contained SVG."""
    console = Console(record=True, width=110, file=io.StringIO(), highlight=False)
    _bars(console, "rows found in memory, of those asked for", [(p, p.memory_hit_rate) for p in study.predictions])
    most = max((p.ssd_hits_per_sample for p in study.predictions), default=0.0) or 1.0
    reads = [(p, p.ssd_hits_per_sample / most) for p in study.predictions]
    _bars(console, f"rows read from SSD a row trained, of {most:.2f} at most", reads)
    console.save_svg(str(path), title=f"tiers of {study.job}")


def study_table(study: TierStudy) -> RenderableType:
    """One line a budget, and one of what the run measured."""
    table = Table(box=None, padding=(0, 1))
    names = ("memory", "found in memory", "rows in memory", "rows on SSD", "rows from SSD", "read", "written")
    for name in (*names, "times the rows evicted"):
        table.add_column(name, justify="right")
    for p in study.predictions:
        table.add_row(size(p.memory_bytes), *_cells(asdict(p)))
    if study.measured:
        told = dict(study.measured)
        budget = told["memory_budget_bytes"] / study.servers
        told["ssd_hits_per_sample"] = told["ssd_hits"] / max(study.predictions[0].samples, 1)
        table.add_row(f"{size(budget)}, measured", *_cells(told))
    head = f"{study.job}, {study.trace}, windows of {study.window} steps, {study.sample:.3g} of the keys"
    return Group(
        Text(head, style="bold"),
        Text(f"memory of each of {study.servers} servers; from SSD, read and written: a row trained"),
        table,
    )


def _cells(told: dict[str, float]) -> Iterator[str]:
    yield f"{told['memory_hit_rate']:.1%}"
    yield f"{told['memory_rows']:,.0f}"
    yield f"{told['ssd_rows']:,.0f}"
    yield f"{told['ssd_hits_per_sample']:.2f}"
    yield size(told["disk_read_bytes_per_sample"])
    yield size(told["disk_written_bytes_per_sample"])
    yield f"{told['write_amplification']:.2f}"


def _bars(console: Console, title: str, shares: Sequence[tuple[TierPrediction, float]]) -> None:
    table = Table(title=title, title_justify="left", box=None)
    for name in ("memory", "", "share"):
        table.add_column(name, justify="right")
    for prediction, share in shares:
        table.add_row(size(prediction.memory_bytes), Bar(1.0, 0.0, min(1.0, share), width=70), f"{share:.1%}")
    console.print(table)
    console.print()


def _window(job: Job, spec: JobSpec, summary: Summary | None) -> int:
    if spec.window != AUTO_WINDOW:
        return spec.window
    return int(str(summary.window["taken"])) if summary is not None and summary.window else DEFAULT_WINDOW


def _trace(spec: JobSpec, zipf: ZipfTrace | None) -> Iterator[TowerWindow]:
    if zipf is not None:
        return windows_of_zipf(spec, exponent=zipf.exponent, distinct=zipf.distinct, steps=zipf.steps)
    data = DataPass.open(spec.train, phase=Phase.TRAIN, epochs=spec.epochs, max_steps=spec.max_steps)
    return windows_of_data(spec, data)


def _told(zipf: ZipfTrace | None) -> str:
    if zipf is None:
        return "the job's data"
    return f"{zipf.steps} steps of {zipf.distinct:,} ids a feature, Zipf {zipf.exponent:g}"


def _distinct(trace: Iterator[TowerWindow]) -> int:
    """About how many rows a trace touches: those that enter windows, of a 256th of the keys."""
    seen: set[int] = set()
    for window in trace:
        for group, moves in enumerate(window.moves):
            few = moves.enter.keys % 251 == 0
            seen.update((moves.enter.keys[few] * 64 + moves.enter.tables[few] + group).tolist())
    return len(seen) * 251


def _fitting_sample(rows: int) -> float:
    return min(1.0, SAMPLE_ROWS / max(rows, 1))


def _note(path: Path, summary: Summary, prediction: TierPrediction) -> None:
    """Put the prediction beside what was measured."""
    rates = {
        name: value for name, value in asdict(prediction).items() if name in summary.tiers and name != "memory_bytes"
    }
    told = {f"predicted_{name}": value for name, value in rates.items()}
    replace(summary, tiers={**summary.tiers, **told}).write(path)
