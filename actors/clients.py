"""Actors seen through the protocols that the loops and the exchange are written against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray

from actors.calls import Answer
from actors.naming import NAMESPACE, Member, Role
from hetero.errors import PeerLostError
from hetero.exchange.messages import (
    DensePart,
    DensePullReply,
    DensePushRequest,
    DifferencesReply,
    DifferencesRequest,
    LeasedValues,
    LeaseReply,
    LeaseRequest,
    Pending,
    PullReply,
    PullRequest,
    PushReply,
    PushRequest,
    ReturnRequest,
)
from hetero.exchange.moving import Sent
from hetero.keys.routing import Routing
from hetero.keys.sequencer import Claim, Turn
from hetero.keys.windows import TowerWindow
from hetero.loops.meeting import Absent
from hetero.records import Batch, BatchSpec, KeySet, Piece, SplitReport

_BOUNDARY_DEADLINES = 10  # all that changed since the copy, not one request


@dataclass(frozen=True, slots=True)
class Peer:
    """An actor another actor calls: its name, the run's deadline, and Ray's handle, whose methods have no types."""

    member: Member
    handle: Any
    deadline_s: float


class RemoteServer:
    """A server actor, as a `ServerHandle`."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def pull(self, request: PullRequest) -> Pending[PullReply]:
        return self._answer(self._peer.handle.pull.remote(request), f"pull for step {request.step}")

    def push(self, request: PushRequest) -> Pending[PushReply]:
        return self._answer(self._peer.handle.push.remote(request), f"push of step {request.step}")

    def lease(self, request: LeaseRequest) -> Pending[LeaseReply]:
        return self._answer(self._peer.handle.lease.remote(request), f"fetch for window {request.window}")

    def give_back(self, request: ReturnRequest) -> Pending[None]:
        return self._answer(self._peer.handle.give_back.remote(request), f"return before window {request.window}")

    def note_leased(self, values: LeasedValues) -> Pending[None]:
        return self._answer(self._peer.handle.note_leased.remote(values), f"leased rows after step {values.steps}")

    def cut(self, name: str, *, base: str | None) -> Pending[None]:
        return self._answer(self._peer.handle.cut.remote(name, base), f"cut for {name}")

    def send_rest(self) -> Pending[Sent]:
        ref = self._peer.handle.send_rest.remote()
        deadline_s = _BOUNDARY_DEADLINES * self._peer.deadline_s
        return Answer(
            ref=ref, member=self._peer.member, what="rows changed since they were copied", deadline_s=deadline_s
        )

    def adopt(self, then: Routing, *, steps: int) -> Pending[None]:
        return self._answer(self._peer.handle.adopt.remote(then, steps), f"change to routing {then.version}")

    def open_dense(self, part: DensePart) -> Pending[None]:
        return self._answer(self._peer.handle.open_dense.remote(part), "first dense parameters")

    def pull_dense(self) -> Pending[DensePullReply]:
        return self._answer(self._peer.handle.pull_dense.remote(), "pull of dense parameters")

    def dense_state(self) -> Pending[dict[str, np.ndarray]]:
        return self._answer(self._peer.handle.dense_state.remote(), "state of the dense optimizer")

    def push_dense(self, request: DensePushRequest) -> Pending[None]:
        return self._answer(self._peer.handle.push_dense.remote(request), f"dense push number {request.sequence}")

    def exchange(self, request: DifferencesRequest) -> Pending[DifferencesReply]:
        return self._answer(self._peer.handle.exchange.remote(request), f"exchange after step {request.step}")

    def _answer(self, ref: Any, what: str) -> Answer[Any]:
        return Answer(ref=ref, member=self._peer.member, what=what, deadline_s=self._peer.deadline_s)


def find_server(run: str, number: int, *, deadline_s: float) -> RemoteServer:
    """A server by its name. Raises PeerLostError when there is none."""
    member = Member(run, Role.SERVER, number)
    try:
        handle = ray.get_actor(str(member), namespace=NAMESPACE)
    except ValueError as error:
        raise PeerLostError(f"{member} is not there: {error}") from error
    return RemoteServer(Peer(member, handle, deadline_s))


class RemoteReader:
    """A reader actor, as a tower and the sequencer see it."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def batch(self, piece: Piece) -> Pending[Batch]:
        return self._answer(self._peer.handle.batch.remote(piece), "rows", piece)

    def keys(self, piece: Piece) -> Pending[tuple[KeySet, ...]]:
        return self._answer(self._peer.handle.keys.remote(piece), "keys of rows", piece)

    def _answer(self, ref: Any, what: str, piece: Piece) -> Answer[Any]:
        where = f"{what} {piece.start} to {piece.stop} of split {piece.position}"
        return Answer(ref=ref, member=self._peer.member, what=where, deadline_s=self._peer.deadline_s)


class RemoteSequencer:
    """The sequencer actor, as readers and towers see it. Its answers may take a moment: it waits for news."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def claim(self, reader: int) -> Claim:
        answer: Answer[Claim] = self._answer(self._peer.handle.claim.remote(reader), "claim")
        return answer.result()

    def report(self, reader: int, report: SplitReport) -> None:
        answer: Answer[None] = self._answer(self._peer.handle.report.remote(reader, report), "report")
        answer.result()

    def take(self, tower: int, *, acknowledged: Sequence[int]) -> BatchSpec | Turn:
        ref = self._peer.handle.take.remote(tower, acknowledged=tuple(acknowledged))
        answer: Answer[BatchSpec | Turn] = self._answer(ref, "take")
        return answer.result()

    def take_window(self, tower: int, *, acknowledged: Sequence[int], crossed: float | None) -> TowerWindow | Turn:
        ref = self._peer.handle.take_window.remote(tower, acknowledged=tuple(acknowledged), crossed=crossed)
        answer: Answer[TowerWindow | Turn] = self._answer(ref, "take a window")
        return answer.result()

    def meet(self, tower: int, *, number: int, value: int) -> int | Absent:
        answer: Answer[int | Absent] = self._answer(
            self._peer.handle.meet.remote(tower, number=number, value=value), f"meeting {number} of towers"
        )
        return answer.result()

    def leave(self, tower: int) -> None:
        self._answer(self._peer.handle.leave.remote(tower), "leave").result()

    def stop(self) -> None:
        """The run ends before its data does."""
        self._answer(self._peer.handle.stop.remote(), "stop").result()

    def _answer(self, ref: Any, what: str) -> Answer[Any]:
        return Answer(ref=ref, member=self._peer.member, what=what, deadline_s=self._peer.deadline_s)
