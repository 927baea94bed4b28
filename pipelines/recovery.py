"""A run that loses a role goes on by itself: one attempt after the other, each from the newest whole snapshot."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from hetero.errors import NoRoomError, PeerLostError
from hetero.loops.recovery import Action, Counts, Decision, Loss, Recovery, RecoveryLog, decide
from hetero.loops.run import DataPass
from hetero.observe.run_folder import RunFolder
from hetero.records import START, JobSpec
from pipelines.build import Placement, cluster_room
from pipelines.resume import ResumeFrom, newest
from pipelines.watching import Watcher

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What the run tries: with these numbers of actors, from `start` (the beginning, where there is none)."""

    spec: JobSpec
    train: DataPass
    start: ResumeFrom | None


class Recoveries:
    """Acts on what `hetero.loops.recovery` decides. stopping: whether someone asked the run to end. least: numbers
    below which the run does not go."""

    def __init__(
        self,
        *,
        limit: int,
        folder: RunFolder,
        placement: Placement,
        watcher: Watcher,
        stopping: Callable[[], bool],
        least: Counts | None = None,
    ) -> None:
        self.log = RecoveryLog(limit=limit, told=watcher.recovered)
        self._folder = folder
        self._placement = placement
        self._watcher = watcher
        self._stopping = stopping
        self._least = least

    def run(self, attempt: Callable[[Attempt], T | Counts], *, first: Attempt) -> T:
        """Try, and try again after a loss; where an attempt returns numbers, from the newest snapshot with those.

        Raises the loss that the run does not recover from, with the reason.
        """
        current = first
        while True:
            try:
                result = attempt(current)
                if not isinstance(result, Counts):
                    return result
                current = self._from(newest(self._folder), current, result.put_in(current.spec))
            except (PeerLostError, NoRoomError) as error:
                self.log.notice()
                current = self._after(error, current)

    def _after(self, error: PeerLostError | NoRoomError, before: Attempt) -> Attempt:
        """What is tried next."""
        start = newest(self._folder)
        role = error.role if isinstance(error, PeerLostError) else None
        decision = decide(
            Loss(
                cause=str(error),
                role=role,
                alive=False,
                started=self.log.started,
                refused=isinstance(error, NoRoomError),
            ),
            job=before.spec,
            recovered=self.log.count,
            limit=self.log.limit,
            snapshot_step=None if start is None else start.cursor.step,
            room=cluster_room(self._placement),
            least=self._least,
            stopping=self._stopping(),
        )
        if decision.action is Action.GIVE_UP:
            raise (self.log.gave_up(error, decision.reason) if self.log.started else error) from error
        _LOG.warning("%s; %s", error, decision.reason)
        self._note(str(error), role, decision, start)
        return self._from(start, before, decision.put_in(before.spec))

    def _from(self, start: ResumeFrom | None, before: Attempt, spec: JobSpec) -> Attempt:
        self._watcher.went_back(start)
        cursor = START if start is None else start.cursor
        return Attempt(spec=spec, train=replace(before.train, start=cursor), start=start)

    def _note(self, cause: str, role: str | None, decision: Decision, start: ResumeFrom | None) -> None:
        phase, step = self._watcher.phase, self._watcher.step
        back_to = 0 if start is None else start.cursor.step
        self.log.begin(
            Recovery(
                cause=cause,
                role=role,
                action=decision.action,
                reason=decision.reason,
                phase=phase.value,
                step=max(step, back_to),
                back_to=back_to,
            )
        )
