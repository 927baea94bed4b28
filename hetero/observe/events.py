"""The run's event log: append-only lines of JSON, one a span, a step or an event.

    {"t": 1764460800.125, "run": "demo", "role": "tower/0", "kind": "span", "name": "rows.pull", ...}
    {"t": 1764460800.131, "run": "demo", "role": "tower/0", "kind": "step", "name": "step", "step": 7, ...}
    {"t": 1764460800.140, "run": "demo", "role": "driver", "kind": "event", "name": "run.started"}
    {"t": 1764460802.131, "run": "demo", "role": "tower/0", "kind": "pulse", "name": "pulse", "hetero_step": 31.0, ...}

`t` is in unix seconds. Numbers that are not finite stand as null, so that every line is plain JSON.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType

import numpy as np

from hetero.errors import DataError, HeteroError
from hetero.observe.metrics import Pulse
from hetero.observe.spans import Span


class EventKind(Enum):
    """What a line is about: time spent, a step of training, something that happened, or how a role stands."""

    SPAN = "span"
    STEP = "step"
    EVENT = "event"
    PULSE = "pulse"


RESERVED = frozenset({"t", "run", "role", "kind", "name"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the log. `t`: unix seconds; `fields`: everything beside the five fixed names."""

    t: float
    run: str
    role: str
    kind: EventKind
    name: str
    fields: Mapping[str, object]


def plain(value: object) -> object:
    """`value` as JSON can hold it: numpy scalars and arrays as numbers and lists, enums as their values,
    paths as text, floats that are not finite as None.

    Raises TypeError for anything else that JSON has no form for.
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return plain(value.tolist())
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


class EventLog:
    """Appends events to a file; any thread may write, and each line reaches the file whole and at once.

    Every line is one `write` on a descriptor opened for appending, so that several processes of one machine
    may share the file. Raises HeteroError when written to after `close`.
    """

    def __init__(self, path: Path, *, run: str, role: str, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._run = run
        self._role = role
        self._clock = clock
        self._lock = threading.Lock()
        self._descriptor: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def span(self, span: Span, *, seconds: float, role: str | None = None, **fields: object) -> None:
        """Time spent in `span`, exclusive of spans inside it."""
        self._write(EventKind.SPAN, span.value, role=role, fields={"seconds": seconds, **fields})

    def step(self, step: int, *, role: str | None = None, **fields: object) -> None:
        """One step of training, such as its loss and rows."""
        self._write(EventKind.STEP, "step", role=role, fields={"step": step, **fields})

    def event(self, name: str, *, role: str | None = None, **fields: object) -> None:
        """Something that happened, under a dotted name such as `run.started`."""
        self._write(EventKind.EVENT, name, role=role, fields=fields)

    def pulse(self, pulse: Pulse) -> None:
        """How a role stood at the pulse's own time."""
        self._write(EventKind.PULSE, "pulse", role=pulse.role, fields=pulse.to_fields(), t=pulse.t)

    def close(self) -> None:
        """Close the file; closing twice does nothing."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(
        self,
        kind: EventKind,
        name: str,
        *,
        role: str | None,
        fields: Mapping[str, object],
        t: float | None = None,
    ) -> None:
        clash = RESERVED & fields.keys()
        if clash:
            raise ValueError(f"event {name!r}: the field {sorted(clash)[0]!r} is one of the log's own")
        head = {"run": self._run, "role": role or self._role, "kind": kind.value, "name": name}
        body = json.dumps({**head, **{key: plain(value) for key, value in fields.items()}}, allow_nan=False)
        with self._lock:
            if self._descriptor is None:
                raise HeteroError(f"event {name!r} was written to {self.path} after the log was closed")
            line = f'{{"t": {self._clock() if t is None else t:.6f}, {body[1:]}\n'.encode()
            written = os.write(self._descriptor, line)
            if written != len(line):
                raise HeteroError(
                    f"{self.path}: {written} of {len(line)} bytes of an event were written; is the disk full?"
                )


def read_events(path: Path) -> Iterator[Event]:
    """The events of a log in the order they were written; an unfinished last line is left out.

    Raises DataError for a line that is not an event, with its number.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
                yield Event(
                    t=record.pop("t"),
                    run=record.pop("run"),
                    role=record.pop("role"),
                    kind=EventKind(record.pop("kind")),
                    name=record.pop("name"),
                    fields=record,
                )
            except (ValueError, KeyError, AttributeError) as error:
                raise DataError(f"{path}, line {number}: not an event of a run ({error})") from error
