"""How the rows of a step are divided among towers: fixed parts, parts that were asked for, or an earlier run's."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from hetero.errors import ProtocolError
from hetero.records import SharesFrom, ShareSpec


class Division:
    """The parts that hold, and what changed. step: with which it begins.

    windowed: other parts that are asked for hold from `begin_window` on, instead of from the next step.
    """

    def __init__(self, spec: ShareSpec, *, towers: int, step: int, windowed: bool) -> None:
        self._parts = spec.first or (1,) * towers
        self._wanted: tuple[int, ...] | None = None
        self._replay = deque(spec.replay)
        self._windowed = windowed
        self._step = step
        chosen = bool(spec.first) or spec.measured
        self._changes = [SharesFrom(step=step, parts=self._parts)] if chosen else []

    def ask(self, parts: Sequence[int]) -> None:
        """Divide by other parts from the next window or step on. Raises ProtocolError for wrong ones."""
        if len(parts) != len(self._parts) or min(parts) < 1:
            raise ProtocolError(f"sequencer: asked for shares {tuple(parts)} of {len(self._parts)} towers")
        self._wanted = tuple(parts)

    def begin_window(self) -> None:
        """The next step that is cut begins a window; no tower may have taken it."""
        if self._wanted is not None:
            self._change(self._wanted)
            self._wanted = None

    def counts(self, rows: int, *, step: int) -> Iterator[int]:
        """Rows of each tower in a step of so many. Call once a step, in order."""
        self._step = step
        while self._replay and self._replay[0].step <= step:
            self._change(self._replay.popleft().parts)
        if not self._windowed:
            self.begin_window()
        self._step = step + 1
        whole, until = sum(self._parts), 0
        for part in self._parts:
            before, until = rows * until // whole, until + part
            yield rows * until // whole - before

    def drain_changes(self) -> tuple[SharesFrom, ...]:
        """Changes since the last call, the first parts too where they were chosen."""
        changes, self._changes = tuple(self._changes), []
        return changes

    def _change(self, parts: tuple[int, ...]) -> None:
        self._parts = parts
        self._changes.append(SharesFrom(step=self._step, parts=parts))
