"""Waiting for actors: every wait has a deadline, and its error names who was waited for and for what."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from actors.naming import Member
from hetero.errors import DeadlineError, HeteroError, PeerLostError

T = TypeVar("T")
_CREATION = "an error raised in its creation task"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Generic[T]):
    """The answer of `member` to the call `what`, under way; a `hetero.exchange.messages.Pending`."""

    ref: ray.ObjectRef
    member: Member
    what: str
    deadline_s: float

    def result(self) -> T:
        """Wait for it. Raises DeadlineError, PeerLostError, or what the call raised."""
        try:
            return cast(T, ray.get(self.ref, timeout=self.deadline_s))
        except Exception as error:
            raise as_hetero_error(error, member=self.member, what=self.what, deadline_s=self.deadline_s) from None


class Fetched(Generic[T]):
    """An answer that a thread fetches as soon as it is there: an object on another node begins to move only when
    somebody waits for it.

    fetcher: does so for one answer after the other.
    """

    def __init__(self, answer: Answer[T], *, fetcher: Executor) -> None:
        self._answer = answer
        self._coming = fetcher.submit(answer.result)

    def result(self) -> T:
        """As `Answer.result`: the deadline begins when somebody needs the answer."""
        try:
            return self._coming.result()
        except DeadlineError:
            return self._answer.result()


def as_hetero_error(error: Exception, *, member: Member, what: str, deadline_s: float) -> Exception:
    """What a failed wait means: a deadline passed, an actor died, or the error the call itself raised."""
    if isinstance(error, GetTimeoutError):
        return DeadlineError(f"{member} did not answer `{what}` within {deadline_s:g} s", role=member.short)
    if isinstance(error, RayTaskError):
        cause = error.cause
        if isinstance(cause, Exception) and not isinstance(cause, RayError):
            return cause
        return HeteroError(f"{member}: `{what}` failed: {error}")
    if isinstance(error, RayActorError):
        return PeerLostError(f"{member} died during `{what}`: {_first_line(error)}", role=member.short)
    if isinstance(error, RayError):
        return PeerLostError(f"{member}: `{what}` was lost: {_first_line(error)}", role=member.short)
    return error


def _first_line(error: Exception) -> str:
    """Of an actor that failed while it was made, the last line: what went wrong there."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1] if _CREATION in lines[0] else lines[0]
