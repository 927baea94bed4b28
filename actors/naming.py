"""Names of a run's actors, `<run>/<role>/<index>`, as they stand in errors, in logs and on Ray's dashboard."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NAMESPACE = "hetero"


class Role(Enum):
    """What an actor is."""

    SEQUENCER = "sequencer"
    READER = "reader"
    SERVER = "server"
    TOWER = "tower"
    RANK = "rank"


@dataclass(frozen=True, slots=True)
class Member:
    """One actor of a run."""

    run: str
    role: Role
    index: int

    @property
    def short(self) -> str:
        """`server/1`"""
        return f"{self.role.value}/{self.index}"

    def __str__(self) -> str:
        return f"{self.run}/{self.short}"
