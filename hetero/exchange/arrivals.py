"""The rule of `bounded` and `async`: a push is applied when it arrives, and how stale its rows were is counted.

Consumes   training pulls (what a row held then), push requests
Produces   updated rows; counts of staleness
Waits for  nobody

Towers may have pulled several steps they have not pushed yet. What others had applied to each row is noted at the pull
and looked up again at the push of the same step; the difference is that row's staleness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hetero.embedding.rows import Rows
from hetero.errors import ProtocolError
from hetero.exchange.lanes import Lane
from hetero.exchange.messages import (
    MAX_EXAMPLES,
    PullRequest,
    PushReply,
    PushRequest,
    RejectedGradient,
    own_keys,
)
from hetero.exchange.staleness import OthersPushes, StalenessCounts
from hetero.records import I32, JobSpec, Mode


@dataclass(frozen=True, slots=True)
class _Seen:
    """One group's rows of a pull: their numbers, and pushes by others applied before it. int32 and uint32 [n]."""

    numbers: I32
    others: np.ndarray


class Arrivals:
    """Pushes of one server in `bounded` and `async`. stores: its rows, one a group."""

    def __init__(self, job: JobSpec, stores: Sequence[Rows]) -> None:
        self._stores = stores
        self._lanes = [Lane("push") for _ in range(job.towers.count)]
        self._pushes = [OthersPushes(job.towers.count) for _ in job.groups]
        self._pulled: dict[tuple[int, int], list[_Seen]] = {}
        self._most = job.staleness if job.mode is Mode.BOUNDED else None
        self.steps_applied = 0
        self.rejected = 0
        self.staleness = StalenessCounts()

    def note_pull(self, request: PullRequest) -> None:
        """A tower pulls for training. Raises ProtocolError when it has pulled that step already."""
        pull = (request.tower, request.step)
        if pull in self._pulled:
            raise ProtocolError(f"server: tower {request.tower} pulls for step {request.step} twice")
        seen = []
        for pushes, keys in zip(self._pushes, request.keys, strict=True):
            numbers = pushes.number(keys)
            seen.append(_Seen(numbers, pushes.seen_by(request.tower, numbers)))
        self._pulled[pull] = seen

    def forget_pulls(self) -> None:
        """At a cut: what towers have pulled ahead they pull anew."""
        self._pulled.clear()

    def push(self, request: PushRequest) -> PushReply:
        """Apply one tower's gradients now. A repeated push is not applied again.

        Raises ProtocolError on a gap in the sequence numbers, for a step not pulled or with other rows, and in
        `bounded` for a row that lags by more pushes than the job allows.
        """
        if not self._lanes[request.tower].is_next(request.sequence):
            return PushReply(applied=True, rejected=0, examples=())
        seen = self._pulled.pop((request.tower, request.step), None)
        if seen is None or [len(keys) for keys in request.keys] != [len(part.numbers) for part in seen]:
            raise ProtocolError(
                f"server: tower {request.tower} pushes rows for step {request.step} that it has not pulled for it"
            )
        rejected, examples = 0, []
        for index, store in enumerate(self._stores):
            report = store.push(own_keys(request.keys[index]), np.array(request.gradients[index]))
            self._count(request, index, seen[index], report.rejected_at)
            rejected += report.rejected
            examples += [RejectedGradient(step=request.step, table=table, key=key) for table, key in report.examples]
        self.steps_applied = max(self.steps_applied, request.step + 1)
        self.rejected += rejected
        return PushReply(applied=True, rejected=rejected, examples=tuple(examples[:MAX_EXAMPLES]))

    def _count(self, request: PushRequest, group: int, seen: _Seen, rejected_at: I32) -> None:
        """Note the staleness of the rows that were updated, and that they were."""
        pushes = self._pushes[group]
        numbers = np.delete(seen.numbers, rejected_at)
        lag = pushes.seen_by(request.tower, numbers) - np.delete(seen.others, rejected_at)
        if self._most is not None and len(lag) and int(lag.max()) > self._most:
            raise ProtocolError(
                f"server: a row that tower {request.tower} pushes for step {request.step} lags by {int(lag.max())} "
                f"pushes, the job allows {self._most}: permits were not kept"
            )
        self.staleness.add(lag)
        pushes.note_push(request.tower, numbers)
