"""What a run's folder tells, finished or not, as series over time that can be drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from hetero.errors import UserError
from hetero.observe.events import Event, EventKind, read_events
from hetero.observe.metrics import SECONDS, Metric, MetricKind
from hetero.observe.run_folder import RunFolder, read_json
from hetero.records import F64

STARTED = "run.started"
_ENDS = ("run.finished", "run.stopped", "run.failed")
REST = "rest"
"""Time of a role in none of its spans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values over time. t float64 [n]: seconds that the run was alive; values float64 [n]."""

    t: F64
    values: F64

    def __len__(self) -> int:
        return len(self.t)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Where a role's time went, by interval. edges float64 [n + 1]: seconds alive. shares: by span, float64 [n], of the
    interval; of a role with several threads they may add up to more than 1. rest: what is left of the interval.
    """

    role: str
    edges: F64
    shares: Mapping[str, F64]

    @property
    def rest(self) -> F64:
        rest: F64 = np.maximum(0.0, 1.0 - np.sum(list(self.shares.values()), axis=0))
        return rest


class AliveClock:
    """Unix seconds to seconds that the run was alive: time between an end and going on does not count."""

    def __init__(self, events: Sequence[Event]) -> None:
        starts: list[float] = []
        ends: list[float] = []
        last = 0.0
        for event in events:
            if event.name == STARTED or not starts:
                if starts:
                    ends.append(last)
                starts.append(event.t)
            last = max(last, event.t)
        self._starts = np.array(starts)
        self._ends = np.array([*ends, last] if starts else [])
        self._before = np.concatenate([[0.0], np.cumsum(self._ends - self._starts)[:-1]]) if starts else np.zeros(0)

    def __call__(self, t: F64 | Sequence[float]) -> F64:
        """Of any times, float64 [n]; those between two lives are at the end of the earlier one."""
        at = np.asarray(t, np.float64)
        life = np.clip(np.searchsorted(self._starts, at, side="right") - 1, 0, None)
        inside = np.clip(at - self._starts[life], 0.0, self._ends[life] - self._starts[life])
        alive: F64 = self._before[life] + inside
        return alive

    @property
    def resumed(self) -> F64:
        """When it went on, after its first life."""
        return self._before[1:]

    @property
    def total_s(self) -> float:
        return float(np.sum(self._ends - self._starts))


class RunRecord:
    """One run's folder. Raises UserError where there is no run, DataError for a log that is damaged."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder.open(path)
        if not self.folder.events.is_file():
            raise UserError(f"run folder {path}: has no event log ({self.folder.events.name}), so nothing can be told")
        self.events = list(read_events(self.folder.events))
        if not self.events:
            raise UserError(f"run folder {path}: its event log is empty: the run has not begun")
        self.summary: Mapping[str, object] = read_json(self.folder.summary) if self.folder.finished else {}
        self.alive = AliveClock(self.events)

    @property
    def name(self) -> str:
        return str(self.summary.get("name") or self.first(STARTED).get("job") or self.folder.name)

    @property
    def is_deep(self) -> bool:
        """Whether it is of a transformer on a mesh."""
        return "mesh" in self.first(STARTED)

    @property
    def status(self) -> str:
        """How it ended, in words."""
        last = next((event for event in reversed(self.events) if event.name in (STARTED, *_ENDS)), None)
        if last is None or last.name == STARTED:
            return "has not ended: it is training, or was killed"
        if last.name == "run.failed":
            return f"failed: {last.fields.get('error')}: {last.fields.get('message')}"
        return "finished" if last.name == "run.finished" else str(last.fields.get("message"))

    def first(self, name: str) -> Mapping[str, object]:
        """Fields of the first event of a name; empty without one."""
        return next((event.fields for event in self.events if event.name == name), {})

    def of(self, *names: str) -> list[Event]:
        """Events of these names."""
        return [event for event in self.events if event.kind is EventKind.EVENT and event.name in names]

    @cached_property
    def losses(self) -> tuple[F64, F64]:
        """(steps, losses) float64 [n]: of every step when the run finished, else those that the log has."""
        if self.folder.finished and self.folder.losses.is_file():
            losses = np.load(self.folder.losses)
            last = int(_number(self.steps[-1], "step")) if self.steps else len(losses)
            before = max(0, last - len(losses))  # a deep run that went on has losses since then
            return np.arange(1, len(losses) + 1, dtype=np.float64) + before, losses
        told = {int(_number(event, "step")): _number(event, "loss") for event in self.steps}
        steps = sorted(told)
        return np.array(steps, np.float64), np.array([told[step] for step in steps], np.float64)

    @cached_property
    def steps(self) -> list[Event]:
        """Steps that the log has: a few a second."""
        return [event for event in self.events if event.kind is EventKind.STEP]

    @cached_property
    def roles(self) -> dict[str, list[Event]]:
        """Pulses by role."""
        roles: dict[str, list[Event]] = {}
        for event in self.events:
            if event.kind is EventKind.PULSE:
                roles.setdefault(event.role, []).append(event)
        return roles

    def totals(self) -> dict[str, dict[str, float]]:
        """Seconds by role and span in all, of all its lives: as its pulses told, or more where its end did."""
        found: dict[str, dict[str, float]] = {}
        for role, pulses in self.roles.items():
            for span in dict.fromkeys(name for pulse in pulses for name in _values(pulse, SECONDS.name)):
                told = np.array([_values(pulse, SECONDS.name).get(span, 0.0) for pulse in pulses])
                found.setdefault(role, {})[span] = float(_grown(told)[-1])
        for event in self.events:
            if event.kind is EventKind.SPAN:
                before = found.setdefault(event.role, {}).get(event.name, 0.0)
                found[event.role][event.name] = max(before, _number(event, "seconds"))
        return found

    def speed(self, *, bins: int) -> Series:
        """Steps a second over time."""
        if len(self.steps) >= bins // 4 or not self.folder.step_ends.is_file():
            t = [event.t for event in self.steps]
            done = np.array([_number(event, "step") for event in self.steps])
        else:
            t = np.load(self.folder.step_ends)
            done = np.arange(1, len(t) + 1, dtype=np.float64)
        return _rates(self.alive(t), done, bins=bins)

    def shares(self, role: str, *, bins: int) -> Shares | None:
        """Where a role's time went, interval by interval; None with fewer than two pulses, and without spans."""
        pulses = self.roles.get(role, [])
        spans = list(dict.fromkeys(name for pulse in pulses for name in _values(pulse, SECONDS.name)))
        if len(pulses) < 2 or not spans:
            return None
        t = self.alive([pulse.t for pulse in pulses])
        edges = _edges(t, bins)
        width = np.diff(edges)
        shares = {}
        for span in spans:
            totals = np.array([_values(pulse, SECONDS.name).get(span, 0.0) for pulse in pulses])
            shares[span] = np.clip(np.diff(np.interp(edges, t, _grown(totals))) / width, 0.0, None)
        return Shares(role=role, edges=edges, shares=shares)

    def metric(self, role: str, metric: Metric, label: str | None = None) -> Series:
        """A metric of one role over time; a counter goes on where a new actor begins anew."""
        told = [(pulse.t, _value(pulse, metric.name, label)) for pulse in self.roles.get(role, [])]
        known = [(t, value) for t, value in told if value is not None]
        values = np.array([value for _, value in known], np.float64)
        if metric.kind is MetricKind.COUNTER and len(values):
            values = _grown(values)
        return Series(t=self.alive([t for t, _ in known]), values=values)

    def kinds(self) -> Iterator[tuple[str, list[str]]]:
        """Kinds of role with pulses and their roles: `("server", ["server/0", "server/1"])`."""
        kinds: dict[str, list[str]] = {}
        for role in sorted(self.roles, key=_by_index):
            kinds.setdefault(role.partition("/")[0], []).append(role)
        for kind in ("reader", "sequencer", "server", "tower", "rank"):
            if kind in kinds:
                yield kind, kinds[kind]


def _by_index(role: str) -> tuple[str, int]:
    kind, _, index = role.partition("/")
    return kind, int(index) if index.isdigit() else 0


def _edges(t: F64, bins: int) -> F64:
    """Borders of intervals: the times of pulses, or, of many, of equal intervals."""
    edges: F64 = np.unique(t)
    if len(edges) < 2:
        return np.array([t[0], t[0] + 1e-9])
    return edges if len(edges) <= bins + 1 else np.linspace(t[0], t[-1], bins + 1)


def _grown(totals: F64) -> F64:
    """Totals of a role that may have begun anew as one that only grows."""
    steps = np.diff(totals, prepend=0.0)
    again = steps < 0
    again[0] = False
    steps[again] = totals[again]
    grown: F64 = np.cumsum(steps)
    return grown


def _rates(t: F64, done: F64, *, bins: int) -> Series:
    """Progress a second, in equal intervals. Going back counts as no progress."""
    if len(t) < 2 or t[-1] <= t[0]:
        return Series(t=np.zeros(0), values=np.zeros(0))
    forward = np.maximum(np.diff(done, prepend=done[0]), 0.0)
    edges = np.linspace(t[0], t[-1], min(bins, max(1, len(t) // 4)) + 1)
    rates = np.diff(np.interp(edges, t, np.cumsum(forward))) / np.diff(edges)
    return Series(t=(edges[1:] + edges[:-1]) / 2, values=rates)


def _number(event: Event, name: str) -> float:
    value = event.fields.get(name)
    return float(value) if isinstance(value, (int, float)) else float("nan")


def _values(event: Event, name: str) -> dict[str, float]:
    values = event.fields.get(name)
    return {str(label): float(value) for label, value in values.items()} if isinstance(values, Mapping) else {}


def _value(event: Event, name: str, label: str | None) -> float | None:
    value = event.fields.get(name) if label is None else _values(event, name).get(label)
    return float(value) if isinstance(value, (int, float)) else None
