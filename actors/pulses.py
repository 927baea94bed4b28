"""Pulses of all actors of a run: every so often each is asked for its own, and none is waited for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import ray

from actors.naming import Member
from hetero.loops.pace import Pace
from hetero.loops.pulses import PULSE_EVERY_S
from hetero.observe.metrics import Pulse

_LAST_S = 2.0


class PulseRounds:
    """Pulses of `members`, by handle; looked at as often as the driver looks at the run."""

    def __init__(self, members: Mapping[Member, Any]) -> None:
        self._members = members
        self._pace = Pace(PULSE_EVERY_S)
        self._under_way: dict[ray.ObjectRef, Member] = {}

    def look(self) -> tuple[Pulse, ...]:
        """What has come since the last look; asks anew when it is time. That an actor is lost others notice."""
        pulses: list[Pulse] = []
        if self._under_way:
            done, _ = ray.wait(list(self._under_way), num_returns=len(self._under_way), timeout=0)
            for ref in done:
                del self._under_way[ref]
                pulses += _pulse(ref)
        if self._pace.due():
            asked = set(self._under_way.values())
            for member, handle in self._members.items():
                if member not in asked:
                    self._under_way[handle.pulse.remote()] = member
        return tuple(pulses)

    def last(self) -> tuple[Pulse, ...]:
        """One more of everyone, at the end of a phase; of those who answer at once."""
        asked = [handle.pulse.remote() for handle in self._members.values()]
        done, _ = ray.wait(asked, num_returns=len(asked), timeout=_LAST_S)
        return tuple(pulse for ref in done for pulse in _pulse(ref))


def _pulse(ref: ray.ObjectRef) -> tuple[Pulse, ...]:
    try:
        pulse = cast("Pulse | None", ray.get(ref))
    except Exception:  # of an actor that is lost; whoever depends on it is told elsewhere
        return ()
    return () if pulse is None else (pulse,)
