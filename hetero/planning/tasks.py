"""The tasks of the flow as a chain, with what each costs on each kind of node: what a split of the work starts from.

    read > parse > dedup > lookup > wide > block 1 > ... > block n
    \\_______ reader ______/ \\server/ \\____________ tower ____________/

A stage is a run of neighbouring tasks on nodes of one kind. It may begin where `begins` says: what one role does stays
together. So every split is one that roles can be placed for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from hetero.errors import PlanError


class Role(Enum):
    """Who runs a task."""

    READER = "reader"
    SERVER = "server"
    TOWER = "tower"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Seconds a sample that a task takes of one whole node: of its CPUs, and of its accelerators. `a + b` adds each."""

    cpu_s: float = 0.0
    device_s: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(cpu_s=self.cpu_s + other.cpu_s, device_s=self.device_s + other.device_s)

    def seconds(self, overlap: float) -> float:
        """Of both: the longer one, and what of the shorter is not hidden behind it."""
        longer, shorter = max(self.cpu_s, self.device_s), min(self.cpu_s, self.device_s)
        return longer + (1 - overlap) * shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task. usage: by kind of node; a kind that is missing cannot run it, `reasons` may say why.

    output_bytes: a sample, to the next task. memory_bytes: of all the nodes together, such as rows. begins: whether a
    stage may begin with it. parallel: share of the time that more nodes divide (Amdahl; alpha of 2111.10635).
    """

    name: str
    role: Role
    usage: Mapping[str, Usage]
    output_bytes: float = 0.0
    memory_bytes: float = 0.0
    begins: bool = True
    parallel: float = 1.0
    reasons: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The tasks in order, under one choice that changes what they cost, such as where multi-valued lookups are pooled.

    overlap: share of the shorter of CPU and device time that hides behind the longer, in a stage that uses both.
    """

    name: str
    tasks: tuple[Task, ...]
    overlap: float = 1.0

    def __post_init__(self) -> None:
        if not self.tasks:
            raise PlanError(f"chain `{self.name}` has no tasks")
        if not self.tasks[0].begins:
            raise PlanError(f"the first task `{self.tasks[0].name}` of chain `{self.name}` must begin a stage")
        for task in self.tasks:
            if not 0 < task.parallel <= 1:
                raise PlanError(f"task `{task.name}`: parallel is {task.parallel}, it must be above 0 and at most 1")
