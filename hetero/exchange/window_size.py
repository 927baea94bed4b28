"""How many steps the next window holds: set by the job, or found from measured times and a limit of memory.

Longer windows fetch fewer rows (one that comes back within a window stays) and cross fewer boundaries, at which towers
copy rows and may wait; they need more memory. `auto` begins with one step, so that the first step comes soon, and
doubles while boundaries take more than GROWS_ABOVE of a tower's time and twice the rows still fit. The working set is
concave in its steps, so twice the steps never need more than twice the rows. What is computed is the same to the bit
for any sizes, so this may look at the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetero.errors import CapacityError
from hetero.keys.windows import TowerWindow
from hetero.optim.definition import lease_width
from hetero.records import AUTO_WINDOW, HOST_DEVICE, JobSpec

GROWS_ABOVE = 0.01
MOST_STEPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowChoice:
    """asked: steps, or None for `auto`. taken: steps of the latest windows. why: for people. bytes: most that one
    tower's leased rows needed, leaving and entering ones included."""

    asked: int | None
    taken: int
    why: str
    bytes: int

    def to_dict(self) -> dict[str, object]:
        """The record as JSON holds it."""
        return {
            "asked": "auto" if self.asked is None else self.asked,
            "taken": self.taken,
            "why": self.why,
            "bytes": self.bytes,
        }


class WindowSize:
    """Says how many steps to cut, and learns from what was built and from what towers measured."""

    def __init__(self, job: JobSpec) -> None:
        self._asked = None if job.window == AUTO_WINDOW else job.window
        self._limit = job.window_bytes
        self._row_bytes = [4 * lease_width(group) for group in job.groups]
        self._grows_apart = job.device != HOST_DEVICE
        self._capacities: dict[tuple[int, int], int] = {}
        self._copied = 0  # bytes held twice while longer rows take their place
        self._most = 0
        self._latest = 0
        self._why = "set by the job" if self._asked is not None else "a first window comes soonest with one step"
        self.steps = 1 if self._asked is None else self._asked

    def built(self, windows: Sequence[TowerWindow]) -> None:
        """Note a window, one part a tower.

        Raises CapacityError when a window that cannot be made shorter does not fit the limit.
        """
        self._latest = max(self._bytes_of(window, tower) for tower, window in enumerate(windows))
        self._most = max(self._most, self._latest)
        steps = len(windows[0].specs)
        if self._latest <= self._limit:
            return
        if self._asked is not None or steps <= 1:
            remedy = "raise train.window_bytes" if steps <= 1 else "lower train.window or raise train.window_bytes"
            raise CapacityError(
                f"window {windows[0].index} of {steps} steps: the rows a tower leases need {self._latest} bytes, "
                f"leaving and entering ones included, and train.window_bytes is {self._limit}; {remedy}"
                + (", or lower train.batch_size" if steps <= 1 else "")
            )
        self.steps = max(1, steps // 2)
        self._why = f"{steps} steps needed {self._latest} bytes, over train.window_bytes {self._limit}"

    def crossed(self, share: float) -> None:
        """Note the share of a tower's time that its latest boundary took, [0, 1]."""
        if self._asked is not None:
            return
        if share <= GROWS_ABOVE:
            self._why = f"boundaries take {share:.1%} of a tower's time, at most {GROWS_ABOVE:.0%} is wanted"
        elif 2 * self._latest + self._copied > self._limit:
            self._why = f"twice {self._latest} bytes would not fit train.window_bytes {self._limit}"
        elif self.steps < MOST_STEPS:
            self.steps *= 2
            self._why = f"boundaries took {share:.1%} of a tower's time, more than {GROWS_ABOVE:.0%}"
        else:
            self._why = f"the longest there is; boundaries take {share:.1%} of a tower's time"

    def choice(self) -> WindowChoice:
        """What holds now."""
        return WindowChoice(asked=self._asked, taken=self.steps, why=self._why, bytes=self._most)

    def _bytes_of(self, window: TowerWindow, tower: int) -> int:
        """Of the rows that leave, stay and enter; and on a device, where rows grow by being copied into longer tensors,
        of those they are copied from. In host memory that is a part of them at most, and not counted."""
        total = copied = 0
        for group, (moves, width) in enumerate(zip(window.moves, self._row_bytes, strict=True)):
            total += (len(moves.leave) + moves.capacity + len(moves.enter)) * width
            before = self._capacities.get((tower, group), 0)
            if self._grows_apart and moves.capacity > before:
                self._capacities[tower, group] = moves.capacity
                total += before * width
            copied += self._capacities.get((tower, group), 0) * width
        self._copied = max(self._copied, copied)
        return total
