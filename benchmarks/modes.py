"""Modes beside each other: two towers through Ray on Criteo-like data, one pass each; AUC, speed, staleness, bytes.

    python -m benchmarks.modes [--quick] [--json] [--save]

The examples' DLRM with batches of 4096 on 2 M rows; --quick: batches of 1024 on 200,000 rows. k is 4 for `bounded` and
100 for `geo`. Bytes are payload between towers and servers and, for summed dense gradients, between towers. The slowed
runs give tower 1 more forward passes (`benchmarks.slowed`). The floor of `geo` is what an exchange cannot avoid: each
distinct key of k batches once, where `async` moves every batch's. With --save the table is kept with a plot, as SVG.
"""

from __future__ import annotations

import datetime
import io
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from benchmarks.report import RESULTS, Report, arguments, finish
from hetero.observe.summary import Summary
from pipelines.job import load_job
from pipelines.synthetic import CriteoLike, Made, make_criteo_like

EXAMPLE = Path(__file__).parents[1] / "examples" / "criteo_like_dlrm.yaml"
DATA = Path("data/benchmarks")
TOWERS = 2
BOUND, GEO_STEPS = 4, 100
SLOWED_STEPS = 60
MODES: Mapping[str, tuple[str, ...]] = {
    "sync": (),
    f"bounded, k = {BOUND}": (f"train.staleness={BOUND}",),
    "async": (),
    f"geo, k = {GEO_STEPS}": (f"train.staleness={GEO_STEPS}",),
    f"geo, k = {GEO_STEPS}, scale 1": (f"train.staleness={GEO_STEPS}", "train.geo_scale=1"),
}
_MOST_BARS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much a run of the benchmark trains on."""

    rows: int
    batch: int


def main() -> int:
    options = arguments(__doc__ or "")
    size = Size(rows=200_000, batch=1024) if options.quick else Size(rows=2_000_000, batch=4096)
    made = make_criteo_like(
        DATA / f"criteo-like-{size.rows}", recipe=CriteoLike(rows=size.rows), progress=lambda _: None
    )
    report = Report("modes")
    summaries = {name: trained(name, made, size, *settings) for name, settings in MODES.items()}
    for name, summary in summaries.items():
        add_row(report, name, summary)
    slowed = {name: slowed_run(name, made, size, *MODES[name]) for name in list(MODES)[1:3]}
    for name, summary in slowed.items():
        add_row(report, f"{name}, tower 1 slowed", summary)
    check(report, summaries, slowed, floors=floors_of_geo(made, size))
    if options.save:
        RESULTS.mkdir(exist_ok=True)
        quick = "-quick" if options.quick else ""
        draw(summaries, slowed, RESULTS / f"{datetime.date.today().isoformat()}-modes{quick}.svg")
    return finish(report, options)


def trained(name: str, made: Made, size: Size, *settings: str) -> Summary:
    """One pass over the training rows in a mode, through Ray, and the test rows scored."""
    mode = name.partition(",")[0]
    print(f"training in {name}", file=sys.stderr, flush=True)
    overrides = (
        f"data.train={made.train.absolute()}",
        f"data.test={made.test.absolute()}",
        f"train.batch_size={size.batch}",
        f"train.mode={mode}",
        f"roles.towers={TOWERS}",
        *settings,
    )
    with tempfile.TemporaryDirectory() as folder:
        return load_job(EXAMPLE, overrides=overrides).fit(run_folder=Path(folder) / "run")


def slowed_run(name: str, made: Made, size: Size, *settings: str) -> Summary:
    """A short run in which tower 1 is several times slower than tower 0."""
    tower = "tower.name=benchmarks.slowed:SlowedDLRM"
    return trained(name, made, size, tower, f"train.max_steps={SLOWED_STEPS}", *settings)


def add_row(report: Report, name: str, summary: Summary) -> None:
    report.add(
        mode=name,
        auc="" if summary.auc is None else f"{summary.auc:.5f}",
        samples_per_s=summary.samples_per_s,
        mean_staleness=summary.staleness.get("mean", 0.0),
        max_staleness=summary.staleness.get("max", 0),
        bytes_a_sample=bytes_of(summary) / summary.samples,
        of_them_rows=sum(summary.bytes[path] for path in ("pulled", "pushed", "swapped")) / summary.samples,
        wait_fraction=summary.wait_fraction,
    )


def bytes_of(summary: Summary) -> int:
    """All bytes moved for training; a sum over towers moves every tower's gradients out and the sum in."""
    return sum(summary.bytes.values()) + summary.bytes["dense_summed"]


def check(
    report: Report, summaries: Mapping[str, Summary], slowed: Mapping[str, Summary], *, floors: tuple[float, float]
) -> None:
    sync, bounded, unbounded, geo, _ = summaries.values()
    slow_bounded, slow_async = slowed.values()
    if sync.auc is None or bounded.auc is None or unbounded.auc is None:
        raise ValueError("the test rows have one class only, so there is no AUC to compare")
    report.check("AUC of bounded: distance from sync", abs(bounded.auc - sync.auc), at_most=0.001)
    report.check("AUC of async: distance from sync", abs(unbounded.auc - sync.auc), at_most=0.003)
    most = max(int(str(summary.staleness["max"])) for summary in (bounded, slow_bounded))
    report.check("bounded: largest staleness, never above k", most, at_most=BOUND)
    report.check("bounded with a slowed tower reaches k", int(str(slow_bounded.staleness["max"])), at_least=BOUND)
    report.check("async with a slowed tower passes k", int(str(slow_async.staleness["max"])), at_least=BOUND + 1)
    of_rows, of_all = floors
    report.check(
        f"geo: bytes a sample / those of async (floor {of_all:.3f}; of rows alone {of_rows:.3f})",
        (bytes_of(geo) / geo.samples) / (bytes_of(unbounded) / unbounded.samples),
        at_most=0.2,
    )


def floors_of_geo(made: Made, size: Size) -> tuple[float, float]:
    """Distinct keys of tower 0's first k batches / sum of the batches' uniques; and the same of all bytes.

    Of all bytes: keys, rows and dense parameters, there and back, once in k steps and every step.
    """
    columns = [f"C{number}" for number in range(1, 27)]
    table = pq.read_table(made.train, columns=columns).slice(0, GEO_STEPS * size.batch)
    keys = np.stack([table[c].to_numpy().astype(np.int64) + (i << 40) for i, c in enumerate(columns)], axis=1)
    own = size.batch // TOWERS
    batches = [np.unique(keys[start : start + own]) for start in range(0, len(keys), size.batch)]
    distinct, uniques = len(np.unique(np.concatenate(batches))), sum(len(batch) for batch in batches)
    row_bytes, dense_bytes = 2 + 8 + 4 * 16, 4 * dense_floats()
    once = distinct * row_bytes + dense_bytes
    return distinct / uniques, once / (uniques * row_bytes + GEO_STEPS * dense_bytes)


def dense_floats() -> int:
    """Floats of the examples' DLRM: 13-512-256-16 below, 367-512-256-1 above."""
    layers = [(13, 512), (512, 256), (256, 16), (16 + 27 * 26 // 2, 512), (512, 256), (256, 1)]
    return sum((before + 1) * after for before, after in layers)


def draw(summaries: Mapping[str, Summary], slowed: Mapping[str, Summary], path: Path) -> None:
    """Bars of AUC, speed and bytes by mode, and of staleness in the slowed runs."""
    console = Console(record=True, width=100, file=io.StringIO(), highlight=False)
    base = min(summary.auc or 0.0 for summary in summaries.values()) - 0.002
    _bars(console, f"AUC above {base:.4f}", {n: (s.auc or 0.0) - base for n, s in summaries.items()}, digits=4)
    _bars(console, "samples/s", {name: summary.samples_per_s for name, summary in summaries.items()}, digits=0)
    moved = {name: bytes_of(summary) / summary.samples for name, summary in summaries.items()}
    _bars(console, "bytes a sample", moved, digits=0)
    for name, summary in slowed.items():
        histogram = summary.staleness["histogram"]
        assert isinstance(histogram, Mapping)
        total = sum(histogram.values())
        shares = {value: count / total for value, count in list(histogram.items())[:_MOST_BARS]}
        _bars(console, f"{name}, tower 1 slowed: share of row pushes by staleness", shares, digits=4)
    console.save_svg(str(path), title="modes")


def _bars(console: Console, title: str, values: Mapping[str, float], *, digits: int) -> None:
    table = Table(title=title, title_justify="left", box=None, show_header=False)
    top = max(values.values()) or 1.0
    for name, value in values.items():
        table.add_row(name, Bar(top, 0, value, width=50), f"{value:,.{digits}f}")
    console.print(table)
    console.print()


if __name__ == "__main__":
    sys.exit(main())
