"""What travels between a tower and a server: frozen records of numpy arrays that cross processes as they are.

A request's `version` is that of the routing it was sent by; a server refuses one of another, see `StaleRoutingError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from hetero.errors import StaleRoutingError
from hetero.records import F32, Bags, KeySet

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

MAX_EXAMPLES = 8
"""At most this many rejected gradients are named in one reply."""


class Purpose(Enum):
    """TRAIN pulls create missing rows; SCORE pulls read zeros for them and create nothing."""

    TRAIN = "train"
    SCORE = "score"


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """Rows one tower needs of one server for `step`. keys: one KeySet per group of the job.

    bags: per group the sums it needs instead, over rows of `keys`, or None for rows; empty for rows of all groups.
    """

    tower: int
    step: int
    purpose: Purpose
    keys: tuple[KeySet, ...]
    version: int = 0
    bags: tuple[Bags | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PullReply:
    """rows: per group float32 [U, E] in the order of the request's keys, or [bags, E]."""

    rows: tuple[F32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRequest:
    """Gradients of `step` from one tower, duplicates already summed. sequence: 0, 1, 2, ... per tower and server.

    gradients: per group float32 [U, E]; or of bags [bags, E], as in `PullRequest`.
    """

    tower: int
    sequence: int
    step: int
    keys: tuple[KeySet, ...]
    gradients: tuple[F32, ...]
    version: int = 0
    bags: tuple[Bags | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedGradient:
    """A row whose gradient was not finite and therefore was not applied."""

    step: int
    table: str
    key: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PushReply:
    """What the server did: the step is applied once every tower's push for it has arrived."""

    applied: bool
    rejected: int
    examples: tuple[RejectedGradient, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest:
    """Whole rows one tower takes from one server for `window`. keys: one KeySet per group."""

    tower: int
    window: int
    keys: tuple[KeySet, ...]
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReply:
    """rows: per group float32 [U, W], optimizer state included."""

    rows: tuple[F32, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnRequest:
    """Leased rows that leave a tower before `window`. sequence: 0, 1, 2, ... per tower and server.

    rows: per group float32 [U, W]. flush: the step with which a new day begins once all towers have given all rows
    back, None in the middle of one.
    """

    tower: int
    sequence: int
    window: int
    keys: tuple[KeySet, ...]
    rows: tuple[F32, ...]
    flush: int | None = None
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedValues:
    """What leased rows hold after `steps` steps, for a snapshot; they stay leased.

    keys: one KeySet per group. rows: per group float32 [U, W].
    """

    tower: int
    steps: int
    keys: tuple[KeySet, ...]
    rows: tuple[F32, ...]
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DensePart:
    """The dense parameters one server holds, in one vector. names, shapes: of each. values: float32 [sum of sizes].

    state: what the optimizer begins with, by `<parameter>/<name of the tensor>`; none for a new one.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    values: F32
    state: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DensePullReply:
    """values: float32, laid out as the server's DensePart."""

    values: F32


@dataclass(frozen=True, slots=True, kw_only=True)
class DensePushRequest:
    """Gradients of one server's dense parameters. sequence: 0, 1, 2, ... per tower and server."""

    tower: int
    sequence: int
    gradients: F32


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferencesRequest:
    """What a tower's copies gained since the last time (`geo`). sequence: 0, 1, 2, ... per tower and server.

    differences: per group float32 [U, E], scaled. dense: float32, laid out as the server's DensePart.
    """

    tower: int
    sequence: int
    step: int
    keys: tuple[KeySet, ...]
    differences: tuple[F32, ...]
    dense: F32
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferencesReply:
    """Every row the tower has a copy of that changed since its last request, as the server holds it now.

    keys: per group; rows: float32 [n, E]. dense: float32. rejected, examples: differences that were not finite.
    """

    keys: tuple[KeySet, ...]
    rows: tuple[F32, ...]
    dense: F32
    rejected: int
    examples: tuple[RejectedGradient, ...]


class Pending(Protocol[T_co]):
    """An answer under way."""

    def result(self) -> T_co:
        """Wait for the answer. Raises PeerLostError or DeadlineError naming whom it waited for."""


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """An answer that is already here."""

    value: T

    def result(self) -> T:
        return self.value


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer that is already here and is an error."""

    error: StaleRoutingError

    def result(self) -> Any:
        raise self.error


class ServerHandle(Protocol):
    """One server as a tower sees it: in this process, or an actor. Calls of one caller run in order."""

    def pull(self, request: PullRequest) -> Pending[PullReply]: ...

    def push(self, request: PushRequest) -> Pending[PushReply]: ...

    def lease(self, request: LeaseRequest) -> Pending[LeaseReply]: ...

    def give_back(self, request: ReturnRequest) -> Pending[None]: ...

    def note_leased(self, values: LeasedValues) -> Pending[None]: ...

    def open_dense(self, part: DensePart) -> Pending[None]: ...

    def pull_dense(self) -> Pending[DensePullReply]: ...

    def dense_state(self) -> Pending[dict[str, np.ndarray]]: ...

    def push_dense(self, request: DensePushRequest) -> Pending[None]: ...

    def exchange(self, request: DifferencesRequest) -> Pending[DifferencesReply]: ...


def own_keys(keys: KeySet) -> KeySet:
    """A copy in this process's memory: arrays that came through the object store are read-only and pin their object."""
    return KeySet(np.array(keys.tables), np.array(keys.keys))
