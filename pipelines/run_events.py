"""What happened to a run, from its event log, in words and as marks for plots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from pipelines.report import recovered, size
from pipelines.run_plots import Mark
from pipelines.run_record import RunRecord

_MOST_SNAPSHOTS = 12


def told_events(record: RunRecord) -> list[tuple[float, str]]:
    """(seconds alive, what happened) in words."""
    events = record.of(*_SAID)
    times = record.alive([event.t for event in events])
    return [(float(t), _SAID[event.name](event.fields)) for t, event in zip(times, events, strict=True)]


def step_marks(record: RunRecord) -> list[Mark]:
    """Where the run went on, by step."""
    marks = [(event.fields.get("step"), "resumed") for event in record.of("run.resumed")]
    marks += [(event.fields.get("back_to"), "recovered") for event in record.of("run.recovered")]
    return [Mark(x=float(step), what=what) for step, what in marks if isinstance(step, (int, float))]


def time_marks(record: RunRecord) -> list[Mark]:
    """What happened while the run went on, by seconds alive; snapshots only where they are few."""
    short = {
        "snapshot.written": "snapshot",
        "run.recovered": "recovered",
        "run.restarted": "restarted",
        "servers.changed": "servers changed",
        "run.resumed": "resumed",
        "test.started": "scoring",
    }
    events = record.of(*short)
    times = record.alive([event.t for event in events])
    marks = [Mark(x=float(t), what=short[event.name]) for t, event in zip(times, events, strict=True)]
    snapshots = [mark for mark in marks if mark.what == "snapshot"]
    return [mark for mark in marks if mark.what != "snapshot" or len(snapshots) <= _MOST_SNAPSHOTS]


def _snapshot(fields: Mapping[str, object]) -> str:
    return (
        f"snapshot of step {fields['step']}: {fields['rows']:,} rows, {size(float(str(fields['bytes'])))}, "
        f"training stood still for {float(str(fields['pause_s'])):.2f} s"
    )


def _shares(step: object, shares: object) -> str:
    told = ", ".join(f"{float(share):.1%}" for share in shares) if isinstance(shares, list) else ""
    return f"batches divided among towers from step {step}: {told}"


def _say(what: str, fields: Mapping[str, object]) -> str:
    return what.format(**fields)


_SAID: Mapping[str, Callable[[Mapping[str, object]], str]] = {
    "run.started": partial(_say, "started, {placement}"),
    "run.resumed": partial(_say, "went on from the snapshot of step {step}"),
    "run.warm_started": partial(_say, "began with {rows} rows of {path}"),
    "run.restarted": partial(_say, "went on from {snapshot}, mesh {mesh}, after: {reason}"),
    "train.started": partial(_say, "training began"),
    "train.finished": partial(_say, "training ended"),
    "test.started": partial(_say, "scoring began"),
    "test.finished": partial(_say, "scoring ended"),
    "snapshot.written": _snapshot,
    "snapshot.failed": partial(_say, "the snapshot of step {step} could not be written: {error}"),
    "servers.changed": partial(_say, "{after} servers after step {step}, {before} before; {rows} rows moved"),
    "shares.changed": lambda fields: _shares(fields["step"], fields["shares"]),
    "servers.kept": partial(_say, "{before} servers stay, {after} were wanted: {error}"),
    "run.recovered": lambda fields: recovered({**fields, "role": fields["lost"]}),
    "evaluation": partial(_say, "validation after step {step}: loss {loss:.4f}"),
    "run.stopped": partial(_say, "{message}"),
    "run.failed": partial(_say, "failed: {error}: {message}"),
    "run.finished": lambda _: "finished",
}
