"""What a run reached, as tables for people, drawn from its summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hetero.metrics.speed import SpeedReport
from hetero.observe.summary import Scores, Summary
from pipelines.progress import duration

MOST_TABLES = 12
STEPS_OF_THE_FLOW = {
    "data.batch": "files to batches",
    "keys.window": "batches to unique keys",
    "rows.pull": "keys to rows",
    "tower.step": "rows to loss and gradients",
    "tower.score": "validation",
    "grads.merge": "gradients summed over towers, dense update",
    "rows.push": "gradients to rows",
    "snapshot.write": "state to snapshot",
    "wait.reader": "waiting for readers",
    "wait.sequencer": "waiting for the sequencer",
    "wait.server": "waiting for servers",
    "wait.towers": "waiting for other towers",
}


def report(summary: Summary) -> RenderableType:
    """The tables that end a run: quality beside the baseline's, speed, where the time went, rows, where it lies."""
    parts: list[RenderableType] = [_quality(summary)] if summary.test_samples else []
    parts.append(_facts(summary))
    if summary.seconds:
        parts.append(_time(summary))
    if summary.rows:
        parts.append(_rows(summary))
    parts += _warnings(summary)
    parts += [Text(""), Text(f"The run lies in {summary.run_folder}", style="bold")]
    return Group(*parts)


def scores_report(scores: Scores, *, of: str) -> RenderableType:
    """The table that ends an evaluation. of: what was scored."""
    table = _table("", "")
    table.add_row("AUC", score(scores.auc))
    table.add_row("log loss", score(scores.logloss))
    _more_scores(table, scores)
    table.add_row("rows/s", f"{scores.samples / max(scores.seconds, 1e-9):,.0f}")
    return Group(_section(f"{of}, {scores.samples:,} rows", table), *_warnings(scores))


def size(count: float) -> str:
    """Bytes as people say them, in powers of 1024: `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _quality(summary: Summary) -> RenderableType:
    baseline = summary.baseline
    table = _table("", "this tower")
    if baseline is not None:
        table.add_column(baseline.name.replace("_", " "), justify="right")
    rows = [("AUC", summary.auc, baseline.auc if baseline else None)]
    rows.append(("log loss", summary.logloss, baseline.logloss if baseline else None))
    for name, own, other in rows:
        table.add_row(name, score(own), *([score(other)] if baseline else []))
    _more_scores(table, summary)
    return _section(f"{summary.name}, {summary.test_samples:,} test rows", table)


def _more_scores(table: Table, scores: Summary | Scores) -> None:
    rest = [""] * (len(table.columns) - 2)
    for name, value in (
        ("normalized entropy", scores.normalized_entropy),
        ("calibration", scores.calibration),
        ("GAUC", scores.gauc),
        (f"NDCG@{scores.ndcg_at}", scores.ndcg),
        ("MRR", scores.mrr),
    ):
        if value is not None:
            table.add_row(name, score(value), *rest)


def _warnings(scores: Summary | Scores) -> list[Text]:
    return [Text(f"warning: {warning}", style="yellow") for warning in scores.warnings]


def _facts(summary: Summary) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for name, value in fact_rows(summary):
        table.add_row(name, value)
    return _section("speed and size", table)


def _snapshots(told: Mapping[str, object]) -> str:
    begun = f"resumed after step {told['resumed_from']}; " if told.get("resumed_from") is not None else ""
    return f"{begun}{told['written']} written, training stood still for {float(str(told['pause_s'])):.1f} s"


def recovered(recovery: Mapping[str, object]) -> str:
    """One recovery in words: `reader/0 lost at step 120, replaced in 4.1 s`."""
    who = recovery["role"] or "a role"
    steps = int(str(recovery["steps_repeated"]))
    seconds = "" if recovery["lost_s"] is None else f" in {float(str(recovery['lost_s'])):.1f} s"
    done = (
        f"back to step {recovery['back_to']}, {steps:,} steps repeated"
        if recovery["action"] == "go back"
        else "replaced"
    )
    return f"{who} lost at step {recovery['step']} ({recovery['phase']}), {done}{seconds}"


def fact_rows(summary: Summary) -> Iterator[tuple[str, str]]:
    """Speed and size of a run: what, and how much in words."""
    yield "ran", summary.placement.replace("_", " ")
    yield "rows trained", f"{summary.samples:,} in {summary.steps:,} steps"
    promised = summary.predicted_samples_per_s
    yield "rows/s", f"{summary.samples_per_s:,.0f}" + (f"; the plan predicted {promised:,.0f}" if promised else "")
    if summary.precision:
        yield "precision", f"{summary.precision['taken']} ({summary.precision['why']})"
    for device, towers in Counter(summary.devices).items():
        if not device.startswith("host"):
            yield "rows of windows on", f"{device}{f', {towers} towers' if towers > 1 else ''}"
    if summary.window:
        steps, bytes_ = int(str(summary.window["taken"])), float(str(summary.window["bytes"]))
        yield "window", f"{steps} steps, at most {size(bytes_)} of rows a tower ({summary.window['why']})"
    if summary.snapshots:
        yield "snapshots", _snapshots(summary.snapshots)
    for change in summary.servers:
        if change["error"] is None:
            moved, pause_s = int(str(change["rows"])), float(str(change["pause_s"]))
            told = f"{moved:,} rows moved, training stood still for {pause_s:.2f} s"
            yield f"servers, step {change['step']}", f"{change['before']} to {change['after']}: {told}"
    for recovery in summary.recoveries:
        yield "recovered", recovered(recovery)
    yield "whole run", duration(summary.wall_s)
    if summary.time_to_first_step_s is not None:
        yield "first step done after", duration(summary.time_to_first_step_s)
    if summary.staleness:
        mean, most = summary.staleness["mean"], summary.staleness["max"]
        yield f"rows lagged, mode {summary.mode}", f"{mean:.2f} pushes of other towers in the mean, {most} at most"
    if summary.samples and any(summary.bytes.values()):
        parts = [f"{name.replace('_', ' ')} {size(count / summary.samples)}" for name, count in summary.bytes.items()]
        yield "moved a row trained", ", ".join(part for part in parts if not part.endswith(" 0 B"))
    if summary.tiers:
        tiers = summary.tiers
        yield (
            "rows found in memory",
            f"{tiers['memory_hit_rate']:.1%} of those asked for; {tiers['memory_rows']:,.0f} rows are in memory, "
            f"{tiers['ssd_rows']:,.0f} on SSD"
            + (f"; predicted {tiers['predicted_memory_hit_rate']:.1%}" if "predicted_memory_hit_rate" in tiers else ""),
        )
        yield (
            "SSD a row trained",
            f"{size(tiers['disk_read_bytes_per_sample'])} read, {size(tiers['disk_written_bytes_per_sample'])} written "
            f"({tiers['write_amplification']:.2f} times the rows evicted)",
        )
    yield "rows in the tables", f"{sum(summary.rows.values()):,}"
    if summary.policies:
        yield from _policies(summary.policies)
    if summary.peak_rss_bytes:
        peaks = sorted(summary.peak_rss_bytes.items(), key=lambda item: -item[1])
        yield "peak memory", ", ".join(f"{role} {size(peak)}" for role, peak in peaks[:4])
    yield "rows left out as malformed", f"{summary.malformed:,}"
    if summary.rejected_gradients:
        yield "gradients rejected", ", ".join(f"{name} {n:,}" for name, n in summary.rejected_gradients.items())


def _policies(counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Keys that wait, and rows that went, by reason."""
    reasons: dict[str, int] = {}
    for name, count in counts.items():
        reason, is_of_table, _ = name.partition("/")
        if is_of_table:
            reasons[reason] = reasons.get(reason, 0) + count
    forgotten = reasons.pop("forgotten", 0)
    yield "keys that wait for a row", f"{counts['waiting']:,}, {forgotten:,} more were forgotten"
    if reasons:
        told = ", ".join(f"{reason.replace('_', ' ')} {count:,}" for reason, count in reasons.items())
        yield "rows dropped", f"{sum(reasons.values()):,}: {told}"


def _time(summary: Summary) -> RenderableType:
    table = _table("span", "seconds", "share")
    table.add_column("", no_wrap=True, style="dim")
    total = sum(summary.seconds.values()) or 1.0
    for span, seconds in summary.seconds.items():
        table.add_row(span, f"{seconds:,.2f}", f"{seconds / total:.0%}", STEPS_OF_THE_FLOW.get(span, ""))
    return _section("where the towers' time went", table, *_waits(summary))


def _waits(summary: Summary) -> Iterator[RenderableType]:
    if summary.speed:
        yield Text(SpeedReport(**summary.speed).sentence())  # type: ignore[arg-type]
    if cpu := _cpu_shares(summary):
        yield Text(f"CPU time while training: {cpu}")
    for waiter, waits in summary.waits.items():
        if not waiter.startswith("tower/"):
            continue  # a reader that waits is as far ahead as it may be
        text = ", ".join(f"{role} {seconds:,.2f} s" for role, seconds in waits.items() if seconds > 0)
        if text:
            yield Text(f"{waiter} waited for {text}")


def _cpu_shares(summary: Summary) -> str:
    """`tower 92%, reader 4%`: shares of all roles' CPU time."""
    total = sum(summary.cpu_s.values())
    shares: dict[str, float] = {}
    for name, seconds in summary.cpu_s.items():
        role = name.partition("/")[0]
        shares[role] = shares.get(role, 0.0) + seconds / total if total else 0.0
    return ", ".join(f"{role} {share:.1%}" for role, share in sorted(shares.items(), key=lambda item: -item[1]))


def _rows(summary: Summary) -> RenderableType:
    table = _table("table", "rows")
    largest = sorted(summary.rows.items(), key=lambda item: -item[1])
    for name, count in largest[:MOST_TABLES]:
        table.add_row(name, f"{count:,}")
    if len(largest) > MOST_TABLES:
        rest = largest[MOST_TABLES:]
        table.add_row(f"{len(rest)} more", f"{sum(count for _, count in rest):,}")
    return _section("rows in the tables", table)


def _table(first: str, *numbers: str) -> Table:
    """A table whose columns after the first are numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_header=any((first, *numbers)), show_edge=False, pad_edge=False)
    table.add_column(first)
    for number in numbers:
        table.add_column(number, justify="right")
    return table


def _section(title: str, *parts: RenderableType) -> RenderableType:
    """Parts under a title, with a line of room above."""
    return Group(Text(""), Text(title, style="bold"), *parts)


def score(value: float | None) -> str:
    """A score in words, `none` where there is none."""
    return "none" if value is None else f"{value:.4f}"
