"""One tree of exceptions. Every message says what, where, the value and the limit, and what to change.

All of them pickle, so that an actor can raise one and the driver shows it unchanged. `UserError` and what
derives from it is the user's to mend (exit code 2); everything else is a failed run (exit code 1).
"""

from __future__ import annotations


class HeteroError(Exception):
    """Base of all errors this package raises on purpose."""


class UserError(HeteroError):
    """Something the user gave is wrong: job, data, tower, command line."""


class JobError(UserError):
    """A job file or an override does not describe a job; the message starts with the path of the field."""


class DataError(UserError):
    """Input data cannot be used: missing file, wrong type, truncated, too many malformed rows."""


class TowerError(UserError):
    """A tower cannot be built, or returns something that is not one logit per row."""


class PlanError(UserError):
    """No plan does what was asked: the message lists demand against capacity, and what would help."""


class KeyRangeError(UserError):
    """A key would be narrowed, or is no 64-bit integer."""


class NumericsError(HeteroError):
    """Training produced values that cannot be used, such as a loss that is not finite."""


class CapacityError(HeteroError):
    """Something does not fit: memory, a table's capacity, an index; the message holds demand and limit."""


class StoppedError(HeteroError):
    """The run was asked to stop from outside, and did; the message says how to go on. exit_code: of the process."""

    def __init__(self, message: str, *, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (_stopped, (str(self), self.exit_code))


class SnapshotError(HeteroError):
    """A snapshot could not be written: full disk, read-only folder; the message names the file and what to do."""


class PeerLostError(HeteroError):
    """A role of the run died or stopped answering; the message names it. role: `reader/1`, where that is known."""

    def __init__(self, message: str, *, role: str | None = None) -> None:
        super().__init__(message)
        self.role = role

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (_lost, (type(self), str(self), self.role))


class DeadlineError(PeerLostError):
    """A wait ran past its deadline; the message names who was waited for and how long."""


class NoRoomError(CapacityError):
    """The cluster has not the free CPUs that a run's actors ask for; the message holds both numbers."""


class LeaseError(HeteroError):
    """A row was asked for while someone else holds it, or given back by one who does not hold it."""


class ProtocolError(HeteroError):
    """Two roles disagree about step, sequence number or routing version: a bug, or a message from an old run."""


class StaleRoutingError(ProtocolError):
    """A call came by a routing that holds no more; it changed nothing. routing: the one that holds, of
    `hetero.keys.routing`."""

    def __init__(self, message: str, *, routing: object) -> None:
        super().__init__(message)
        self.routing = routing

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (_stale, (str(self), self.routing))


def _stale(message: str, routing: object) -> StaleRoutingError:
    return StaleRoutingError(message, routing=routing)


def _lost(kind: type[PeerLostError], message: str, role: str | None) -> PeerLostError:
    return kind(message, role=role)


def _stopped(message: str, exit_code: int) -> StoppedError:
    return StoppedError(message, exit_code=exit_code)
