"""What a tower's actor is told of the others, and tells the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actors.clients import Peer
from hetero.loops.protocols import Cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Whom a tower talks to."""

    sequencer: Peer
    readers: Sequence[Peer]
    servers: Sequence[Peer]


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerNews:
    """What the driver learns on each look, as of a step shortly before. waits: seconds so far, by role waited for.

    busy_s: seconds of all else.
    """

    step: int
    rows: int
    loss: float | None
    waits: dict[str, float]
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CutNews:
    """A cut that waits for the driver to have it written. name: of the snapshot. routing: version by which the servers
    that settled it hold rows."""

    name: str
    base: str | None
    cut: Cut
    pause_s: float
    routing: int
