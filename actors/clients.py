"""Actors seen through the protocols that the loops and the exchange are written against."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np
import ray

from actors.calls import Answer, Fetched
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
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Peer:
    """An actor another actor calls: its name, the run's deadline, and Ray's handle, whose methods have no types."""

    member: Member
    handle: Any
    deadline_s: float


class RemoteServer:
    """A server actor, as a `ServerHandle`. Rows that are leased come to this node while the window before trains."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._fetcher = ThreadPoolExecutor(1, thread_name_prefix=f"fetch-{peer.member.index}")

    def pull(self, request: PullRequest) -> Pending[PullReply]:
        return self._answer(self._peer.handle.pull.remote(request), f"pull for step {request.step}")

    def push(self, request: PushRequest) -> Pending[PushReply]:
        return self._answer(self._peer.handle.push.remote(request), f"push of step {request.step}")

    def lease(self, request: LeaseRequest) -> Pending[LeaseReply]:
        answer = self._answer(self._peer.handle.lease.remote(request), f"fetch for window {request.window}")
        return Fetched(answer, fetcher=self._fetcher)

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
    """A reader actor, as a tower and the sequencer see it. What a reader that is lost was asked for is asked again of
    the one that takes its place, if that comes within `patience_s`: rows and keys of a piece are the same from both.
    """

    def __init__(self, peer: Peer, *, patience_s: float = 0.0) -> None:
        self._peer = peer
        self._patience_s = patience_s
        self._changed = threading.Condition()

    def replaced(self, peer: Peer) -> None:
        """Another reader is in its place. Any thread may say so."""
        with self._changed:
            self._peer = peer
            self._changed.notify_all()

    def batches(self, pieces: Sequence[Piece]) -> Pending[tuple[Batch, ...]]:
        return _Asked(self, "batches", f"rows {_where(pieces[0], pieces[-1])}", pieces)

    def keys(self, pieces: Sequence[Piece]) -> Pending[tuple[tuple[KeySet, ...], ...]]:
        return _Asked(self, "keys", f"keys of rows {_where(pieces[0], pieces[-1])}", pieces)

    def ask(self, method: str, where: str, asked: Sequence[Piece]) -> tuple[Peer, Answer[Any]]:
        """Begin a call of the reader that is there now."""
        peer = self._peer
        ref = getattr(peer.handle, method).remote(asked)
        return peer, Answer(ref=ref, member=peer.member, what=where, deadline_s=peer.deadline_s)

    def await_another(self, lost: Peer) -> bool:
        """Wait for one in place of `lost`; whether it came."""
        with self._changed:
            return self._changed.wait_for(lambda: self._peer is not lost, timeout=self._patience_s)


class _Asked(Generic[T]):
    """Rows or keys under way, from the first reader that lives long enough to give them."""

    def __init__(self, reader: RemoteReader, method: str, where: str, asked: Sequence[Piece]) -> None:
        self._reader = reader
        self._asked = (method, where, asked)
        self._peer, self._answer = reader.ask(*self._asked)

    def result(self) -> T:
        while True:
            try:
                return cast(T, self._answer.result())
            except PeerLostError:
                if not self._reader.await_another(self._peer):
                    raise
                self._peer, self._answer = self._reader.ask(*self._asked)


def _where(first: Piece, last: Piece) -> str:
    return f"{first.start} to {last.stop} of split {first.position}"


class RemoteSequencer:
    """The sequencer actor, as readers and towers see it. Its answers may take a moment: it waits for news.

    life: of a reader, the how-manieth in its place, from 0.
    """

    def __init__(self, peer: Peer, *, life: int = 0) -> None:
        self._peer = peer
        self._life = life

    def claim(self, reader: int) -> Claim:
        answer: Answer[Claim] = self._answer(self._peer.handle.claim.remote(reader, self._life), "claim")
        return answer.result()

    def report(self, reader: int, report: SplitReport) -> None:
        answer: Answer[None] = self._answer(self._peer.handle.report.remote(reader, report, self._life), "report")
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
