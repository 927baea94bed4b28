"""Sections of a job file about the run itself: who takes part, where rows and snapshots lie, what it begins with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field, Strict, field_validator, model_validator

from hetero.records import HOST_DEVICE, DiskIo
from pipelines.values import Bytes, Count, Flag, Paths, Positive, Section, Text


def _count(value: object) -> object:
    """`servers: 2` stands for `servers: {count: 2}`."""
    return {"count": value} if not isinstance(value, (Mapping, BaseModel)) else value


class Role(Section):
    """How many actors, and how many threads each of them computes with. A bare number is a count."""

    count: Count = 1
    threads: Count = 1


class Shares(Section):
    """How a batch is divided among towers. first: numbers in proportion to the rows of each tower; empty for equal
    shares. measured: follow the towers' speeds while training. replay: `shares.jsonl` of an earlier run, whose changes
    are made again at the same steps."""

    first: tuple[Positive, ...] = ()
    measured: Flag = False
    replay: Text | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Shares:
        if self.replay is not None and (self.first or self.measured):
            raise ValueError("replay has all shares; leave first and measured out")
        return self


class TowerRole(Role):
    """As `Role`. device: where towers compute and hold the rows they lease: `host`, the CPU and its memory with kernels
    of their own; `cuda`, a CUDA device for each; or another torch device, `cpu` among them, with torch operations.
    shares: of the batch, of each tower."""

    device: Annotated[str, Strict(), Field(pattern=r"^[a-z]+$")] = HOST_DEVICE
    shares: Shares = Shares()


class Nodes(Section):
    """`count` equal nodes of a cluster, and how many actors of each role are on each. labels: that a node must have.
    resources: reserved on each by Ray's names for them, such as CPU and GPU; default, CPUs for its actors' threads.
    tower_threads: instead of roles.towers.threads."""

    count: Count = 1
    labels: dict[Text, Text] = Field(default_factory=dict)
    resources: dict[Text, Positive] = Field(default_factory=dict)
    readers: Annotated[int, Strict(), Field(ge=0)] = 0
    servers: Annotated[int, Strict(), Field(ge=0)] = 0
    towers: Annotated[int, Strict(), Field(ge=0)] = 0
    tower_threads: Count | None = None


class ServersFrom(Section):
    """From `step` steps on there are to be `count` servers."""

    step: Count
    count: Count


class ServerRole(Role):
    """As `Role`. schedule: changes of the number while training goes on, by ascending step."""

    schedule: tuple[ServersFrom, ...] = ()

    @field_validator("schedule")
    @classmethod
    def _ascending(cls, schedule: tuple[ServersFrom, ...]) -> tuple[ServersFrom, ...]:
        steps = [change.step for change in schedule]
        if steps != sorted(set(steps)):
            raise ValueError(f"steps must ascend, each once; got {steps}")
        return schedule


Range = Annotated[tuple[Count, Count], Field(description="least and most")]


class ElasticRoles(Section):
    """The least and the most actors of each role, such as [1, 4], as nodes come and go; a role without stays at its
    count. settle_s: how long a decision must stand before the run acts on it."""

    readers: Range | None = None
    servers: Range | None = None
    towers: Range | None = None
    settle_s: Positive = 30.0


class Roles(Section):
    """Who takes part, besides the one sequencer. nodes: where they are, as a plan has it; empty for anywhere.
    elastic: bounds within which the numbers follow the cluster's nodes; null for numbers that stay."""

    readers: Annotated[Role, BeforeValidator(_count)] = Role()
    servers: Annotated[ServerRole, BeforeValidator(_count)] = ServerRole()
    towers: Annotated[TowerRole, BeforeValidator(_count)] = TowerRole()
    nodes: tuple[Nodes, ...] = ()
    elastic: ElasticRoles | None = None


class Storage(Section):
    """Where servers keep rows. memory_bytes: of one server, over all tables: rows, indexes and buffers; null keeps all
    rows in memory, whatever they take. Beyond it rows lie in files in `directories` on the server's machine, best on
    SSDs of their own, of ssd_bytes at most. Sizes may be written as `8GiB`. io: `direct` passes the system's page cache
    by, `cached` uses it. Bits are the same with any budget."""

    memory_bytes: Annotated[Bytes, Field(ge=1 << 20)] | None = None
    directories: Paths = ()
    ssd_bytes: Annotated[Bytes, Field(ge=1 << 20)] | None = None
    io: DiskIo = DiskIo.DIRECT

    @model_validator(mode="after")
    def _all_or_none(self) -> Storage:
        given = [self.memory_bytes is not None, bool(self.directories), self.ssd_bytes is not None]
        if any(given) and not all(given):
            raise ValueError("memory_bytes, directories and ssd_bytes go together; give all three or none")
        return self


class Run(Section):
    """folder: where the run lies; default, `runs/<job's name>`. deadline_s: how long a role waits for another before
    the run fails with the other's name. room_deadline_s: how long the run waits for room on the cluster, such as nodes
    that its autoscaler starts; default, deadline_s. stop_deadline_s: how long the snapshot of a run that is stopped
    from outside may take. recoveries: how often a run that lost a role recovers by itself before it fails: a reader is
    replaced, without any other role the run goes back to its newest snapshot; 0 for never. predicted:
    samples a second that a plan promised, told beside what was reached."""

    folder: str = ""
    deadline_s: Positive = 20.0
    room_deadline_s: Positive | None = None
    stop_deadline_s: Positive = 60.0
    recoveries: Annotated[int, Strict(), Field(ge=0)] = 3
    predicted: Positive | None = None


class Snapshots(Section):
    """When a run takes snapshots that it can be resumed from: after every `every_steps` steps, and when `every_s`
    seconds have passed since the last; null for neither. keep: how many stay on disk, the newest ones. One more is
    taken when the run is stopped from outside. deltas: after one with all rows, so many hold only those that changed
    since the one before. folder: a path or URI that all machines reach, in which the run makes a
    folder of its own; default, the run's folder."""

    every_steps: Count | None = None
    every_s: Positive | None = 600.0
    keep: Count = 2
    deltas: Annotated[int, Strict(), Field(ge=0, le=100)] = 0
    folder: Text | None = None


class WarmStart(Section):
    """What a new run begins with instead of first values. from: folder of another run, whose model or else whose newest
    whole snapshot is taken, or of a snapshot. tables: `all`, or names: `<table>/<feature>`, or `<table>` for all of its
    features'; empty for none. dense: the tower's parameters too."""

    source: Text = Field(alias="from")
    tables: Literal["all"] | tuple[Text, ...] = "all"
    dense: Flag = True
