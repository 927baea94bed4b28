"""The sections of a run's page: what each shows of the run, or why it has nothing to show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from hetero.observe.metrics import BYTES, MFU, ROWS, STALENESS_MEAN, TIER_HITS, TIER_ROWS, Metric
from hetero.observe.summary import Summary
from hetero.records import F64
from pipelines.deep_summary import DeepSummary, deep_facts
from pipelines.page_parts import Absent, Figure, Part, Section, TablePart, Told
from pipelines.progress import duration
from pipelines.report import STEPS_OF_THE_FLOW, fact_rows, score, size
from pipelines.run_events import step_marks, time_marks, told_events
from pipelines.run_plots import (
    TimeAxis,
    histogram_plot,
    lines_plot,
    loss_plot,
    pairs_plot,
    timeline_plot,
    totals_plot,
)
from pipelines.run_record import RunRecord, Series, Shares

_BINS = 120
_MOST_ROLES = 4
_MOST_EVENTS = 60


def sections(record: RunRecord) -> tuple[Section, ...]:
    """All sections of a run's page."""
    titled: Mapping[str, Callable[[RunRecord], Sequence[Part]]] = {
        "What it came to": _facts,
        "Loss": _loss,
        "Throughput": _throughput,
        "Where time went": _time,
        "Rows and tiers": _tiers,
        "Staleness": _staleness,
        "Bytes moved": _bytes,
        "Predicted beside measured": _predicted,
        "What happened": _happened,
        "Machine and versions": _machine,
    }
    return tuple(Section(title=title, parts=tuple(parts(record))) for title, parts in titled.items())


def _facts(record: RunRecord) -> list[Part]:
    if not record.summary:
        return [Absent("The run has not finished; what it came to is known once it has.")]
    if record.is_deep:
        return [_pairs(deep_facts(DeepSummary.read(record.folder.summary)).items())]
    summary = Summary.read(record.folder.summary)
    parts: list[Part] = []
    if summary.test_samples:
        parts.append(_quality(summary))
    parts.append(_pairs(fact_rows(summary)))
    parts += [Told(f"warning: {warning}", is_warning=True) for warning in summary.warnings]
    return parts


def _quality(summary: Summary) -> TablePart:
    baseline = summary.baseline
    head: tuple[str, ...] = (f"{summary.test_samples:,} test rows", "this tower")
    rows = [("AUC", summary.auc), ("log loss", summary.logloss)]
    told = [(name, score(value)) for name, value in rows]
    if baseline is not None:
        head = (*head, baseline.name.replace("_", " "))
        others = (baseline.auc, baseline.logloss)
        return TablePart(
            head=head,
            rows=tuple((*row, score(other)) for row, other in zip(told, others, strict=True)),
            numbers=frozenset({1, 2}),
        )
    more = [("normalized entropy", summary.normalized_entropy), ("calibration", summary.calibration)]
    told += [(name, score(value)) for name, value in [*more, ("GAUC", summary.gauc)] if value is not None]
    return TablePart(head=head, rows=tuple(told), numbers=frozenset({1}))


def _loss(record: RunRecord) -> list[Part]:
    steps, values = record.losses
    if not len(steps):
        return [Absent("No step was done.")]
    evaluations = record.of("evaluation")
    validation = None
    if evaluations:
        validation = (_floats(e.fields["step"] for e in evaluations), _floats(e.fields["loss"] for e in evaluations))
    marks = step_marks(record)
    svg = loss_plot(
        (steps, values), unit="nats a token" if record.is_deep else "nats a row", validation=validation, marks=marks
    )
    told = "every step" if record.folder.finished else "the steps that the event log has, a few a second"
    return [Figure(name="loss", svg=svg, caption=f"Training loss of {told}.")]


def _throughput(record: RunRecord) -> list[Part]:
    speed = record.speed(bins=_BINS)
    per_step, what = _per_step(record)
    if not len(speed) or per_step is None:
        return [Absent("Too few steps were done to draw their speed.")]
    line = Series(t=speed.t, values=speed.values * per_step)
    axis = _axis(record)
    svg = lines_plot({what: line}, ylabel=what, axis=axis, marks=time_marks(record))
    caption = f"{what} over the time that the run was alive; dotted lines are what happened meanwhile."
    parts: list[Part] = [Figure(name="throughput", svg=svg, caption=caption)]
    if record.is_deep and (mfu := record.metric("rank/0", MFU)):
        svg = lines_plot({"MFU": mfu}, ylabel="MFU of rank 0", axis=axis, share=True)
        caption = "FLOP/s of the model / FLOP/s of plain matrix products on the same device."
        parts.append(Figure(name="mfu", svg=svg, caption=caption))
    return parts


def _axis(record: RunRecord) -> TimeAxis:
    """From the start of training, the start of processes left out, to the end."""
    begun = [event.t for event in record.of("train.started")] or [event.t for event in record.steps]
    start_s = float(record.alive(begun[:1])[0]) if begun else 0.0
    return TimeAxis.of(start_s, record.alive.total_s)


def _per_step(record: RunRecord) -> tuple[float | None, str]:
    """What one step trains: tokens or rows."""
    told = record.summary
    done, steps = told.get("tokens" if record.is_deep else "samples"), told.get("steps")
    what = "tokens/s" if record.is_deep else "rows/s"
    if isinstance(done, int) and isinstance(steps, int) and steps:
        return done / steps, what
    last = next(iter(reversed(record.steps)), None)
    if last is not None and isinstance(last.fields.get("rows"), int):
        return float(str(last.fields["rows"])) / float(str(last.fields["step"])), what
    return (1.0, "steps/s") if record.steps else (None, what)


def _time(record: RunRecord) -> list[Part]:
    totals = record.totals()
    if not totals:
        return [Absent("The log has no spans: the run ended before any of its roles was asked.")]
    axis = _axis(record)
    roles = [shares for kind, names in record.kinds() for shares in _kind_shares(record, kind, names)]
    parts: list[Part] = []
    if roles:
        svg = timeline_plot(roles, axis=axis, marks=time_marks(record))
        caption = (
            "Share of every role's time by span, 1 being all of the interval; grey is time in no span: idle, or "
            "between phases. Waits are drawn in reds. A span under way is charged once it ends."
        )
        parts.append(Figure(name="timeline", svg=svg, caption=caption))
    else:
        parts.append(
            Absent("No timeline: the run was too short for two pulses of a role, which come every two seconds.")
        )
    shown = _some_totals(totals)
    svg = totals_plot(shown)
    parts.append(Figure(name="totals", svg=svg, caption="Time of every role inside spans, in all."))
    spans = {span for seconds in shown.values() for span, spent in seconds.items() if spent > 0}
    legend = [(span, what) for span, what in STEPS_OF_THE_FLOW.items() if span in spans]
    return [*parts, _pairs(legend)]


def _kind_shares(record: RunRecord, kind: str, names: Sequence[str]) -> list[Shares]:
    """Of every role of a kind, or of their mean where they are many."""
    found = [shares for name in names if (shares := record.shares(name, bins=_BINS)) is not None]
    if len(found) <= _MOST_ROLES:
        return found
    edges = found[0].edges
    middle = (edges[1:] + edges[:-1]) / 2
    spans = dict.fromkeys(span for shares in found for span in shares.shares)

    def at(shares: Shares, span: str) -> F64:
        values = shares.shares.get(span, np.zeros(len(shares.edges) - 1))
        at_middle: F64 = np.interp(middle, (shares.edges[1:] + shares.edges[:-1]) / 2, values)
        return at_middle

    mean = {span: np.mean([at(shares, span) for shares in found], axis=0) for span in spans}
    return [Shares(role=f"{len(found)} {kind}s", edges=edges, shares=mean)]


def _some_totals(totals: Mapping[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
    """Of every role; of kinds with many, of the first few."""
    shown: dict[str, Mapping[str, float]] = {}
    count: dict[str, int] = {}
    for role, seconds in totals.items():
        kind = role.partition("/")[0]
        count[kind] = count.get(kind, 0) + 1
        if count[kind] <= 2 * _MOST_ROLES:
            shown[role] = seconds
    return shown


def _tiers(record: RunRecord) -> list[Part]:
    if record.is_deep:
        return [Absent("A deep model has no rows: its parameters lie with the ranks.")]
    axis = _axis(record)
    servers = [role for role in record.roles if role.startswith("server/")]
    parts: list[Part] = []
    if rows := _by_label(record, servers, ROWS):
        svg = lines_plot(rows, ylabel="rows", axis=axis)
        parts.append(Figure(name="rows", svg=svg, caption="Rows that all servers hold, by the job's table."))
    rates = _hit_rates(record, servers)
    if not rates:
        why = "No tiers: the servers had no budget of memory (storage.memory_bytes), so every row was in memory."
        return [*parts, Absent(why)]
    svg = lines_plot(rates, ylabel="share of the rows found", axis=axis, share=True)
    caption = "Rows that were asked for and there, by where they were; those made anew are left out."
    parts.append(Figure(name="hit-rates", svg=svg, caption=caption))
    held = _by_label(record, servers, TIER_ROWS)
    svg = lines_plot(held, ylabel="rows", axis=axis)
    parts.append(Figure(name="tier-rows", svg=svg, caption="Rows by where they are; leased ones are with towers."))
    return parts


def _by_label(record: RunRecord, roles: Sequence[str], metric: Metric) -> dict[str, Series]:
    """A metric of several roles added up, by its label."""
    labels = dict.fromkeys(
        label for role in roles for pulse in record.roles[role] for label in _labels(pulse.fields, metric.name)
    )
    found = {}
    for label in labels:
        each = [series for role in roles if len(series := record.metric(role, metric, label))]
        t = each[0].t
        total = np.sum([np.interp(t, series.t, series.values) for series in each], axis=0)
        found[label] = Series(t=t, values=total)
    return found


def _hit_rates(record: RunRecord, servers: Sequence[str]) -> dict[str, Series]:
    """Of all servers: growth of the rows found, between pulses."""
    hits = _by_label(record, servers, TIER_HITS)
    hits = {tier: series for tier, series in hits.items() if tier != "created"}
    if not hits:
        return {}
    grown = {tier: np.clip(np.diff(series.values), 0, None) for tier, series in hits.items()}
    asked = np.sum(list(grown.values()), axis=0)
    some = asked > 0
    t = next(iter(hits.values())).t[1:]
    return {tier: Series(t=t[some], values=more[some] / asked[some]) for tier, more in grown.items()}


def _labels(fields: Mapping[str, object], metric: str) -> list[str]:
    values = fields.get(metric)
    return [str(label) for label in values] if isinstance(values, Mapping) else []


def _staleness(record: RunRecord) -> list[Part]:
    if record.is_deep:
        return [Absent("None: the ranks of a mesh keep in step.")]
    told = record.summary.get("staleness")
    if isinstance(told, Mapping) and told:
        counts = {int(n): float(count) for n, count in dict(told["histogram"]).items()}
        svg = histogram_plot(
            counts, xlabel="pushes of other towers between pull and push of a row", ylabel="share of rows pushed"
        )
        caption = f"Mode {record.summary.get('mode')}: {told['mean']:.2f} in the mean, {told['max']} at most."
        return [Figure(name="staleness", svg=svg, caption=caption)]
    servers = [role for role in record.roles if role.startswith("server/")]
    lines = {role: line for role in servers if len(line := record.metric(role, STALENESS_MEAN))}
    if lines:
        svg = lines_plot(lines, ylabel="pushes, mean", axis=_axis(record))
        return [Figure(name="staleness", svg=svg, caption="How stale rows were when they were pushed, so far.")]
    return [Absent("None: in mode sync, and with one tower, no row is ever stale.")]


def _bytes(record: RunRecord) -> list[Part]:
    if record.is_deep:
        sent = record.summary.get("sent_bytes")
        rows = [
            (str(axis), str(link), size(count))
            for axis, links in (sent.items() if isinstance(sent, Mapping) else ())
            for link, count in links.items()
        ]
        head = ("axis of the mesh", "link", "bytes a step, all ranks")
        return (
            [TablePart(head=head, rows=tuple(rows), numbers=frozenset({2}))]
            if rows
            else [Absent("Nothing was sent between ranks, or the run did not come to the step that is metered.")]
        )
    moved = _by_label(record, [role for role in record.roles if role.startswith("tower/")], BYTES)
    moved = {path: series for path, series in moved.items() if series.values.max(initial=0.0) > 0}
    if not moved:
        return [Absent("No pulse of a tower has told of bytes: the run was too short, or all was in one process.")]
    gib = {path: Series(t=line.t, values=line.values / 2**20) for path, line in moved.items()}
    svg = lines_plot(gib, ylabel="MiB in all", axis=_axis(record))
    return [Figure(name="bytes", svg=svg, caption="Payload that all towers moved so far, by path.")]


def _predicted(record: RunRecord) -> list[Part]:
    pairs = _predictions(record.summary)
    if not pairs:
        why = "Nothing was predicted"
        how = (
            "train with --plan, or ask `hetero tiers RUN` of a run with a budget of memory"
            if not record.is_deep
            else ""
        )
        return [Absent(f"{why}: {how}." if how else f"{why} of this run.")]
    rows = tuple(
        (name, _readable(predicted), _readable(measured), f"{measured / predicted - 1:+.1%}" if predicted else "")
        for name, (predicted, measured) in pairs.items()
    )
    svg = pairs_plot(pairs)
    head = ("", "predicted", "measured", "difference")
    caption = "What was measured, as a multiple of what was predicted."
    if record.summary.get("tiers"):
        caption += (
            " Tiers are predicted for training alone; what was measured holds evaluation, snapshots and the model's "
            "writing too."
        )
    return [
        Figure(name="predicted", svg=svg, caption=caption),
        TablePart(head=head, rows=rows, numbers=frozenset({1, 2, 3})),
    ]


def _predictions(summary: Mapping[str, object]) -> dict[str, tuple[float, float]]:
    """(predicted, measured) by name: of all that the summary and its tiers have as `x` and as `predicted_x`."""
    tiers = summary.get("tiers")
    pairs: dict[str, tuple[float, float]] = {}
    for told in (summary, tiers if isinstance(tiers, Mapping) else {}):
        for name, predicted in told.items():
            of = name.removeprefix("predicted_")
            if of != name and of in told:
                pairs |= _paired(of.replace("_", " "), predicted, told[of])
    return pairs


def _paired(name: str, predicted: object, measured: object) -> dict[str, tuple[float, float]]:
    """Two numbers; of two mappings what both have, where a measured part may be divided further and is summed."""
    if isinstance(predicted, Mapping) and isinstance(measured, Mapping):
        both = [key for key in predicted if key in measured]
        return {k: v for key in both for k, v in _paired(f"{name} {key}", predicted[key], measured[key]).items()}
    if isinstance(measured, Mapping):
        measured = sum(float(part) for part in measured.values())
    if isinstance(predicted, (int, float)) and isinstance(measured, (int, float)):
        return {name: (float(predicted), float(measured))}
    return {}


def _happened(record: RunRecord) -> list[Part]:
    rows = [(duration(float(t)), what) for t, what in told_events(record)]
    parts: list[Part] = []
    if len(rows) > _MOST_EVENTS:
        parts.append(
            Told(f"The first and last {_MOST_EVENTS // 2} of {len(rows)}; all are in {record.folder.events.name}.")
        )
        rows = rows[: _MOST_EVENTS // 2] + rows[-_MOST_EVENTS // 2 :]
    return [*parts, TablePart(head=("after", "what"), rows=tuple(rows))]


def _machine(record: RunRecord) -> list[Part]:
    nodes = record.summary.get("nodes")
    if isinstance(nodes, Mapping) and nodes:
        rows = tuple((str(role), str(node)) for role, node in nodes.items())
        return [TablePart(head=("role", "node"), rows=rows), *_driver(record)]
    return _driver(record)


def _driver(record: RunRecord) -> list[Part]:
    hardware, versions = record.summary.get("hardware"), record.summary.get("versions")
    if not isinstance(hardware, Mapping) or not isinstance(versions, Mapping):
        return [Absent("They stand in the summary, which the run writes when it has finished.")]
    told = {name: value for name, value in hardware.items() if isinstance(value, (str, int, float)) and value != ""}
    rows = [
        (name.replace("_", " "), size(float(value)) if name.endswith("bytes") else str(value))
        for name, value in told.items()
    ]
    return [_pairs([*rows, *((str(name), str(version)) for name, version in versions.items())])]


def _readable(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _pairs(rows: Iterable[tuple[str, str]]) -> TablePart:
    return TablePart(head=("", ""), rows=tuple(rows))


def _floats(values: Iterable[object]) -> F64:
    return np.array([float(str(value)) for value in values], np.float64)
