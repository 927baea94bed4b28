"""Which of several failures explains the others: an actor that died or is silent, before those who waited for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from actors.calls import Answer, as_hetero_error
from actors.naming import Member
from hetero.errors import DeadlineError, PeerLostError

_SETTLE_S = 3.0


@dataclass(frozen=True, slots=True)
class Failure:
    """What a member's call ended with."""

    member: Member
    error: Exception


def failure_of(answer: Answer[Any]) -> Failure | None:
    """The failure of a call that has ended; None when it gave a result."""
    try:
        ray.get(answer.ref)
    except Exception as error:
        told = as_hetero_error(error, member=answer.member, what=answer.what, deadline_s=answer.deadline_s)
        return Failure(answer.member, told)
    return None


def root_of(failures: Sequence[Failure], members: Mapping[Member, Any]) -> Exception:
    """The root of several failures. One whose peer died may fail before that death is known here, so where someone was
    lost every member is asked once more, and one that is dead or silent comes first."""
    for failure in failures:
        if not isinstance(failure.error, PeerLostError):
            return failure.error
    pings = {handle.ping.remote(): member for member, handle in members.items()}
    done, silent = ray.wait(list(pings), num_returns=len(pings), timeout=_SETTLE_S)
    for ref in done:
        try:
            ray.get(ref)
        except Exception as error:
            return as_hetero_error(error, member=pings[ref], what="ping", deadline_s=_SETTLE_S)
    if silent:
        names = ", ".join(str(pings[ref]) for ref in silent)
        told = f"{names}: no answer for {_SETTLE_S:g} s; meanwhile: {failures[0].error}"
        return DeadlineError(told, role=pings[silent[0]].short)
    return failures[0].error
