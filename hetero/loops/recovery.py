"""What becomes of a run that has lost a role: decisions with their reasons, and the account of what each loss cost.

The decision is a pure function of what happened; the supervisor acts on it. A reader holds nothing that cannot be read
again, so another takes its place at its cursor while the rest goes on. Servers and towers hold the model, the sequencer
knows where everyone stands: without one of them the run goes back to its newest whole snapshot, or to its start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum

from hetero.errors import PeerLostError
from hetero.records import JobSpec, ShareSpec

READER = "reader"


class Action(Enum):
    """What is done about a loss."""

    REPLACE = "replace the reader"
    GO_BACK = "go back"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many actors of each role a run has, besides its sequencer."""

    readers: int
    servers: int
    towers: int

    @staticmethod
    def of(job: JobSpec) -> Counts:
        return Counts(readers=job.readers.count, servers=job.servers.count, towers=job.towers.count)

    def put_in(self, job: JobSpec) -> JobSpec:
        """The job with so many. Other numbers than its nodes were chosen for are anywhere, in equal shares."""
        if self == Counts.of(job):
            return job
        mesh = None if job.tower.mesh is None else replace(job.tower.mesh, dp=self.towers)  # a data way a tower
        return replace(
            job,
            tower=replace(job.tower, mesh=mesh),
            nodes=(),
            shares=ShareSpec(),
            readers=replace(job.readers, count=self.readers),
            servers=replace(job.servers, count=self.servers),
            towers=replace(job.towers, count=self.towers),
        )

    def below(self, other: Counts) -> bool:
        """Whether any role has fewer actors than there."""
        return self.readers < other.readers or self.servers < other.servers or self.towers < other.towers

    def fewer(self) -> Counts | None:
        """One actor less: of readers or servers, of which there are more, as results do not depend on their numbers;
        of towers when there is one of each. None when nobody is left out."""
        if max(self.readers, self.servers) > 1:
            name = "readers" if self.readers >= self.servers else "servers"
            return replace(self, **{name: getattr(self, name) - 1})
        return replace(self, towers=self.towers - 1) if self.towers > 1 else None

    def __str__(self) -> str:
        named = {"reader": self.readers, "server": self.servers, "tower": self.towers}
        return ", ".join(f"{count} {name}{'s' if count > 1 else ''}" for name, count in named.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the cluster can hold. nodes: CPUs of every node that is alive. demand: CPUs of every actor, for a job."""

    nodes: tuple[float, ...]
    demand: Callable[[JobSpec], Sequence[float]]

    def holds(self, job: JobSpec) -> bool:
        """Whether its actors fit, the largest placed first, each where most is free."""
        free = sorted(self.nodes)
        for cpus in sorted(self.demand(job), reverse=True):
            if not free or free[-1] + 1e-9 < cpus:
                return False
            free[-1] -= cpus
            free.sort()
        return True

    @property
    def described(self) -> str:
        """The nodes, as decisions name them: the same words in whatever order the cluster lists them."""
        cpus = ", ".join(f"{cpus:g} CPUs" for cpus in sorted(self.nodes, reverse=True) if cpus)
        return f"the nodes that are there ({cpus or 'none'})"

    def most_of(self, job: JobSpec) -> Counts | None:
        """The numbers of actors nearest to the job's that fit; None when not even one of each does."""
        counts: Counts | None = Counts.of(job)
        while counts is not None and not self.holds(counts.put_in(job)):
            counts = counts.fewer()
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What happened. role: `reader/1`, or None when nobody can say whose fault it is. alive: whether all other roles go
    on. node_alive: whether the node that the role was on is there. started: whether the run ever began to train.
    refused: the cluster had no room for the actors that were asked for.
    """

    cause: str
    role: str | None
    alive: bool
    node_alive: bool = True
    started: bool = True
    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is done, and why. counts: of actors from now on, where they change. anywhere: not on the job's nodes."""

    action: Action
    reason: str
    counts: Counts | None = None
    anywhere: bool = False

    def put_in(self, job: JobSpec) -> JobSpec:
        """The job as it goes on."""
        job = (self.counts or Counts.of(job)).put_in(job)
        return replace(job, nodes=()) if self.anywhere else job


def decide(
    loss: Loss,
    *,
    job: JobSpec,
    recovered: int,
    limit: int,
    snapshot_step: int | None,
    room: Room | None = None,
    least: Counts | None = None,
    stopping: bool = False,
) -> Decision:
    """What to do about a loss. recovered: how often this run was recovered before, of at most `limit` times.

    snapshot_step: of the newest whole snapshot, or None. room: what the cluster holds now; None when it is not asked.
    least: numbers below which the run does not go: it waits for nodes instead. stopping: someone asked the run to end.
    """
    if not loss.started:
        return Decision(action=Action.GIVE_UP, reason="it failed before the run began to train, so nothing was lost")
    if recovered >= limit:
        times = "no recovery is allowed" if limit == 0 else f"the run has recovered {recovered} times"
        return Decision(
            action=Action.GIVE_UP,
            reason=f"{times} (run.recoveries: {limit}); find out what ends its actors, or raise run.recoveries",
        )
    if loss.alive and loss.node_alive and _is_reader(loss.role):
        return Decision(
            action=Action.REPLACE,
            reason="a reader holds only what can be read again, and all others live: another reads on in its place",
        )
    where = "its start, as there is no snapshot" if snapshot_step is None else f"the snapshot of step {snapshot_step}"
    if stopping:
        return Decision(
            action=Action.GIVE_UP, reason=f"the run was asked to stop; `hetero resume` goes on from {where}"
        )
    if room is None or room.holds(job):
        if loss.refused and job.nodes:
            reason = f"no nodes with the labels of the job's came in time: back to {where}, wherever there is room"
            return Decision(action=Action.GO_BACK, reason=reason, anywhere=True)
        if loss.refused:
            reason = f"the nodes that are left ({_nodes(room)}) would hold it, others may use them: asked again"
            return Decision(action=Action.GO_BACK, reason=reason)
        return Decision(action=Action.GO_BACK, reason=f"{_why_back(loss)}: back to {where}")
    counts = room.most_of(job)
    if least is not None and (counts is None or counts.below(least)):
        reason = f"the nodes that are left ({_nodes(room)}) do not hold {least}: back to {where}, to wait for nodes"
        return Decision(action=Action.GO_BACK, reason=reason, counts=least)
    if counts is None:
        return Decision(
            action=Action.GIVE_UP, reason=f"the nodes that are left ({_nodes(room)}) hold no run of this job"
        )
    return Decision(
        action=Action.GO_BACK,
        reason=f"the nodes that are left ({_nodes(room)}) do not hold {Counts.of(job)}: back to {where} with {counts}"
        + (", wherever there is room" if job.nodes else ""),
        counts=counts,
    )


def _is_reader(role: str | None) -> bool:
    return role is not None and role.partition("/")[0] == READER


def _why_back(loss: Loss) -> str:
    if _is_reader(loss.role):
        return "a reader is gone with its node" if not loss.node_alive else "a reader is gone, and others have failed"
    kind = "a role" if loss.role is None else f"the {loss.role.partition('/')[0]}"
    return f"what {kind} held is gone"


def _nodes(room: Room | None) -> str:
    if room is None:
        return "unknown"
    return ", ".join(f"{cpus:g} CPUs" for cpus in room.nodes if cpus) or "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One loss and what it cost. step: reached when it was noticed. back_to: the step the run went back to; that
    reached for a reader replaced. lost_s: seconds from the last sign of progress before that until the run stood there
    again or was hit anew; None where it was given up.
    """

    cause: str
    role: str | None
    action: Action
    reason: str
    phase: str
    step: int
    back_to: int
    lost_s: float | None = None

    @property
    def steps_repeated(self) -> int:
        return self.step - self.back_to

    def to_dict(self) -> dict[str, object]:
        """As events and summaries hold it."""
        record = asdict(self) | {"action": self.action.value, "steps_repeated": self.steps_repeated}
        return {name: value for name, value in record.items() if name != "lost_s"} | {"lost_s": self.lost_s}


class RecoveryLog:
    """The recoveries of one run, of at most `limit`. told: hears of each once it is over. now: monotonic seconds."""

    def __init__(
        self,
        *,
        limit: int,
        told: Callable[[Recovery], None] = lambda _: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit = limit
        self.done: list[Recovery] = []
        self.started = False
        self._told = told
        self._now = now
        self._open: tuple[Recovery, float] | None = None
        self._noticed_t: float | None = None
        self._last_step = -1
        self._progress_t: float | None = None

    @property
    def count(self) -> int:
        """Recoveries so far, the one under way included."""
        return len(self.done) + (self._open is not None)

    def notice(self) -> None:
        """A loss was noticed: time has been lost since the last sign of progress."""
        if self._noticed_t is None:
            self._noticed_t = self._now() if self._progress_t is None else self._progress_t

    def begin(self, recovery: Recovery) -> None:
        """The run recovers. One that was under way ends here, without having come to where it was."""
        noticed_t = self._now() if self._noticed_t is None else self._noticed_t
        if self._open is not None:
            self._end(noticed_t - self._open[1])
        self._open, self._noticed_t = (recovery, noticed_t), None

    def reached(self, step: int, *, training: bool = True) -> None:
        """The run stands after `step` steps, or is past training."""
        self.started = True
        if step != self._last_step or not training:
            self._last_step, self._progress_t = step, self._now()
        if self._open is not None and (step >= self._open[0].step or not training):
            self._end(self._now() - self._open[1])

    def replaced(self) -> None:
        """A new reader reads on."""
        if self._open is not None:
            self._end(self._now() - self._open[1])

    def gave_up(self, error: Exception, reason: str) -> PeerLostError:
        """The error that ends the run, with what was tried."""
        self._end(None)
        before = f" (before that: {'; '.join(one.cause for one in self.done)})" if self.done else ""
        role = error.role if isinstance(error, PeerLostError) else None
        return PeerLostError(f"{error}; not recovered: {reason}{before}", role=role)

    def _end(self, lost_s: float | None) -> None:
        if self._open is None:
            return
        recovery, self._open = replace(self._open[0], lost_s=lost_s), None
        self.done.append(recovery)
        self._told(recovery)
