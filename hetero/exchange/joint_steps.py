"""The rule of `sync`: a step's pushes of all towers are merged in tower order and applied once.

Consumes   push requests of one step, in any order of towers
Produces   one update of every row the step touched
Waits for  nobody: the step is applied when the last tower's push for it arrives
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero.embedding.rows import Rows
from hetero.errors import ProtocolError
from hetero.exchange.lanes import Lane
from hetero.exchange.merge import merge_gradients
from hetero.exchange.messages import (
    MAX_EXAMPLES,
    PullRequest,
    PushReply,
    PushRequest,
    RejectedGradient,
    own_keys,
)
from hetero.keys.dedup import Deduplicator
from hetero.optim.definition import gradient_width
from hetero.records import JobSpec


class JointSteps:
    """Pushes of one server in `sync`. stores: its rows, one a group."""

    def __init__(self, job: JobSpec, stores: Sequence[Rows]) -> None:
        self._widths = [gradient_width(group) for group in job.groups]
        self._stores = stores
        self._lanes = [Lane("push") for _ in range(job.towers.count)]
        self._waiting: dict[int, dict[int, PushRequest]] = {}
        self._dedup = Deduplicator()
        self.steps_applied = 0
        self.rejected = 0

    def note_pull(self, request: PullRequest) -> None:
        """Raises ProtocolError when a training pull comes before every push of the step before it was applied."""
        if request.step != self.steps_applied:
            raise ProtocolError(
                f"server: tower {request.tower} pulls for step {request.step}, but {self.steps_applied} steps are "
                "applied: in sync mode a pull sees exactly the steps before its own"
            )

    def push(self, request: PushRequest) -> PushReply:
        """Take one tower's gradients; apply the step once all towers' are here. A repeated push is not applied again.

        Raises ProtocolError on a gap in the sequence numbers or a step that is not the next one.
        """
        lane = self._lanes[request.tower]
        if request.sequence < lane.next_number:
            return PushReply(applied=request.step < self.steps_applied, rejected=0, examples=())
        if request.sequence > lane.next_number or request.step != self.steps_applied:
            raise ProtocolError(
                f"server: tower {request.tower} pushed number {request.sequence} for step {request.step}, expected "
                f"number {lane.next_number} for step {self.steps_applied}"
            )
        lane.next_number += 1
        waiting = self._waiting.setdefault(request.step, {})
        waiting[request.tower] = request
        if len(waiting) < len(self._lanes):
            return PushReply(applied=False, rejected=0, examples=())
        return self._apply(request.step, [waiting[tower] for tower in range(len(self._lanes))])

    def _apply(self, step: int, pushes: list[PushRequest]) -> PushReply:
        del self._waiting[step]
        rejected, examples = 0, []
        for index, store in enumerate(self._stores):
            parts = [(own_keys(push.keys[index]), np.array(push.gradients[index])) for push in pushes]
            keys, gradients = merge_gradients(parts, dim=self._widths[index], dedup=self._dedup)
            report = store.push(keys, gradients)
            rejected += report.rejected
            examples += [RejectedGradient(step=step, table=table, key=key) for table, key in report.examples]
        self.steps_applied += 1
        self.rejected += rejected
        return PushReply(applied=True, rejected=rejected, examples=tuple(examples[:MAX_EXAMPLES]))
