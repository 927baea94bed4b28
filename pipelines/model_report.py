"""What predict, export and inspect found, as tables for people."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipelines.export import Exported
from pipelines.inspection import KeyView, ModelView, RowView, TableView, View
from pipelines.predict import Predicted
from pipelines.report import size
from pipelines.shrink import ShrinkReport

_MOST_VALUES = 8


def predicted_report(predicted: Predicted) -> RenderableType:
    """What a prediction came to."""
    facts = [
        ("rows", f"{predicted.rows:,}"),
        ("left out", f"{predicted.malformed:,} malformed"),
        ("columns", ", ".join(predicted.columns)),
        ("mean prediction", "none" if predicted.mean_prediction is None else f"{predicted.mean_prediction:.4f}"),
        ("rows/s", f"{predicted.rows_per_s:,.0f}"),
    ]
    return Group(_facts(facts), Text(f"The predictions lie in {predicted.output}", style="bold"))


def exported_report(exported: Exported) -> RenderableType:
    """What an export came to."""
    facts = [("model", f"{exported.model}, step {exported.step:,}"), ("size", size(exported.bytes))]
    facts += [(name, f"{rows:,} rows") for name, rows in exported.tables.items()]
    warnings = [Text(f"warning: {warning}", style="yellow") for warning in exported.warnings]
    return Group(_facts(facts), *warnings, Text(f"The exported model lies in {exported.folder}", style="bold"))


def view_report(view: View) -> RenderableType:
    """What an inspection found."""
    if isinstance(view, ModelView):
        return _model(view)
    return _table(view) if isinstance(view, TableView) else _key(view)


def _model(view: ModelView) -> RenderableType:
    facts = [
        ("model", view.path),
        ("job", f"{view.job}, tower {view.tower}"),
        ("step", f"{view.step:,}, {view.kind}" + (f" on {', '.join(view.bases)}" if view.bases else "")),
        ("written", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(view.written_t))),
        ("size", f"{size(view.bytes)}, {view.buckets:,} buckets, {view.servers} servers in the job"),
        ("dense", f"{len(view.dense)} parameters, {sum(_count(shape) for shape in view.dense.values()):,} values"),
    ]
    table = Table("tables", "dim", "row floats", "optimizer", "rows", "rows' size")
    for group in view.groups:
        table.add_row(
            ", ".join(group.tables),
            str(group.dim),
            str(group.width),
            group.optimizer,
            f"{group.rows:,}",
            size(group.bytes),
        )
    return Group(_facts(facts), table)


def shrunk_report(report: ShrinkReport) -> RenderableType:
    """What was dropped, by table."""
    facts = [
        ("model", f"{report.model}, trained up to day {report.model_day}"),
        ("day", f"{report.day} begins"),
        ("written to", report.folder or "nowhere: rows were only counted"),
    ]
    for table, rows in report.rows.items():
        reasons = report.dropped.get(table, {})
        told = ", ".join(f"{reason.replace('_', ' ')} {count:,}" for reason, count in reasons.items()) or "nothing"
        facts.append((table, f"{rows:,} rows stay; went: {told}"))
    return _facts(facts)


def _table(view: TableView) -> RenderableType:
    facts = [
        ("model", view.path),
        ("table", f"{view.table}, looked up by {', '.join(view.features)}"),
        ("row", f"{view.dim} weights and {view.width - view.dim} floats of {view.optimizer}"),
        ("rows", f"{view.rows:,}, {size(view.bytes)}; {view.zero_rows:,} are all zeros"),
        ("length of weights", ", ".join(f"{name} {value:.4g}" for name, value in view.norms.items()) or "none"),
        ("buckets", f"{view.buckets_used:,} of {view.buckets:,} hold rows"),
        ("rows by server", ", ".join(f"{rows:,}" for rows in view.server_rows)),
    ]
    return _facts(facts)


def _key(view: KeyView) -> RenderableType:
    return Group(Text(f"{view.given} in {view.path}"), *(_row(row) for row in view.rows))


def _row(row: RowView) -> RenderableType:
    facts = [
        ("key", f"{row.key}, {row.taken}" + ("" if row.key == row.signed_key else f" (signed: {row.signed_key})")),
        ("place", f"bucket {row.bucket}, server {row.server}" + ("" if row.file is None else f", {row.file}")),
    ]
    if row.weights is not None:
        facts.append(("weights", _values(row.weights)))
    facts += [(name, _values(values)) for name, values in (row.state or {}).items()]
    facts += [(name, f"{value:,}") for name, value in (row.statistics or {}).items()]
    facts += [("came", row.came), ("why", row.why)]
    title = f"{row.table}: {'held' if row.held else 'not held'}"
    return Group(Text(""), Text(title, style="bold"), _facts(facts))


def _facts(facts: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in facts:
        table.add_row(Text(name, style="dim"), Text(value))
    return table


def _values(values: Sequence[float]) -> str:
    shown = ", ".join(f"{value:.6g}" for value in values[:_MOST_VALUES])
    return shown if len(values) <= _MOST_VALUES else f"{shown} and {len(values) - _MOST_VALUES} more"


def _count(shape: Sequence[int]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count
