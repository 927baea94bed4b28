"""Try what a run survives: hit its roles while it trains, and account for what that cost.

job -> undisturbed run                           the loss, and how often every row was trained
job -> run whose roles are killed or stopped     the same, beside what the run tells of its recoveries
both -> rows lost, rows trained twice, time lost, difference of the loss
"""

from __future__ import annotations

import math
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType

import numpy as np

from actors.bundles import cpus_needed
from actors.faults import DrillCluster, Fault, drill_cluster, inflict
from actors.naming import Role
from hetero.errors import DeadlineError, HeteroError, JobError, PeerLostError
from hetero.observe.run_folder import RunFolder, write_json
from hetero.observe.summary import Summary
from hetero.records import Mode
from pipelines.audit import Updates, difference, updates_of
from pipelines.job import Job, resolve
from pipelines.progress import Progress, ProgressRecord

HIT_ROLES = (Role.READER, Role.SEQUENCER, Role.SERVER, Role.TOWER)
RESULT = "drill.json"
_NODES = 3
_SHARE = 0.6  # of the run's CPUs that a node has: two nodes hold it, one does not
_DEADLINE_S = 8.0
_LIMIT_S = 900.0
_LEFT_BEHIND_S = 15.0
_SNAPSHOTS = 8
_SCORING = "scoring"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One fault: at the first look at or after `step`, or while the test data are scored (None)."""

    fault: Fault
    role: Role
    index: int
    step: int | None

    def to_dict(self) -> dict[str, object]:
        return asdict(self) | {"fault": self.fault.value, "role": self.role.value}

    def __str__(self) -> str:
        when = "while scoring" if self.step is None else f"at step {self.step}"
        return f"{self.fault.value} {self.role.value}/{self.index} {when}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Undisturbed:
    """A run that nothing was done to."""

    summary: Summary
    losses: np.ndarray
    updates: Updates | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drilled:
    """What became of a run that was hit. rows_read_again: of steps that were trained, undone and trained again.

    rows_lost, rows_trained_twice: of the history that the final model comes from. counted_by: what they were counted
    by. same_bits: all losses and the scores are those of the undisturbed run. loss_difference: of final losses,
    relative. left_behind: processes of the run that were still there. error: why it did not come to its end.
    """

    hits: tuple[Hit, ...]
    missed: tuple[Hit, ...]
    recoveries: tuple[Mapping[str, object], ...] = ()
    steps: int = 0
    seconds: float = 0.0
    time_lost_s: float = 0.0
    steps_repeated: int = 0
    rows_read_again: int = 0
    rows_lost: int = 0
    rows_trained_twice: int = 0
    counted_by: str = ""
    final_loss: float | None = None
    undisturbed_loss: float | None = None
    loss_difference: float = math.inf
    same_bits: bool = False
    left_behind: tuple[str, ...] = ()
    error: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the run came to its end with every row trained once, and left nothing behind."""
        return self.error is None and not (self.rows_lost or self.rows_trained_twice or self.left_behind or self.missed)

    def to_dict(self) -> dict[str, object]:
        hits = {"hits": [hit.to_dict() for hit in self.hits], "missed": [hit.to_dict() for hit in self.missed]}
        return asdict(self) | hits


class Saboteur:
    """A run's Progress that hits its roles when the time has come, and passes on what it is told.

    Hits come one after the other; one whose role is not there just then is tried again at the next look.
    """

    def __init__(self, hits: Sequence[Hit], *, run: str, cluster: DrillCluster, progress: Progress) -> None:
        self.pending = list(hits)
        self._run = run
        self._cluster = cluster
        self._progress = progress

    def phase(self, text: str) -> None:
        self._progress.phase(text)
        if text.startswith(_SCORING) and self.pending and self.pending[0].step is None:
            threading.Timer(0.1, self._strike).start()

    def update(self, record: ProgressRecord) -> None:
        self._progress.update(record)
        if self.pending and self.pending[0].step is not None and record.step >= self.pending[0].step:
            self._strike()

    def _strike(self) -> None:
        hit = self.pending[0]
        try:
            inflict(hit.fault, run=self._run, role=hit.role, index=hit.index, cluster=self._cluster)
        except PeerLostError:
            return
        self.pending.pop(0)


def drill(
    job: Job,
    *,
    folder: Path,
    progress: Progress,
    role: Role | None = None,
    fault: Fault = Fault.KILL,
    step: int | None = None,
    seed: int = 1,
) -> Drilled:
    """Train the job undisturbed, then with one fault, and write what came of it to `folder`/drill.json.

    role: None takes one at random, likewise step. Raises JobError for a step that the run does not come to.
    """
    job = hardened(job, folder=folder)
    whole = undisturbed(job, folder=folder / "undisturbed", progress=progress)
    dice = random.Random(seed)
    chosen = role or dice.choice(HIT_ROLES)
    steps = len(whole.losses)
    if step is not None and not 0 < step < steps:
        raise JobError(f"--step {step}: the run has {steps} steps; give one between 1 and {steps - 1}")
    hit = Hit(
        fault=fault,
        role=chosen,
        index=dice.randrange(_count(job, chosen)),
        step=step if step is not None else dice.randrange(1, max(2, steps - 1)),
    )
    if job.snapshots.every_steps is None:
        job = with_snapshots(job, every_steps=max(1, steps // _SNAPSHOTS))
    with cluster_for(job) as cluster:
        drilled = disturbed(job, [hit], folder=folder / "disturbed", cluster=cluster, whole=whole, progress=progress)
    write_json(folder / RESULT, drilled.to_dict())
    return drilled


def hardened(job: Job, *, folder: Path) -> Job:
    """The job as drills run it: short deadlines, no baseline, snapshots in time, enough recoveries, any nodes."""
    record = job.model_dump(mode="json", by_alias=True)
    record["baseline"] = None
    record["run"].update(
        folder=str(folder), deadline_s=min(job.run.deadline_s, _DEADLINE_S), recoveries=max(job.run.recoveries, 20)
    )
    record["snapshots"].update(folder=None)
    record["roles"]["nodes"] = []
    return Job(**record)


def with_snapshots(job: Job, *, every_steps: int) -> Job:
    """The job with a snapshot after every so many steps."""
    record = job.model_dump(mode="json", by_alias=True)
    record["snapshots"].update(every_steps=every_steps)
    return Job(**record)


def node_cpus(jobs: Sequence[Job]) -> int:
    """CPUs of a node, of which two hold any of the jobs; Ray takes whole ones."""
    return max(math.ceil(_SHARE * cpus_needed(resolve(job))) for job in jobs)


def cluster_for(job: Job) -> AbstractContextManager[DrillCluster]:
    """A cluster of this machine with nodes of which two hold the job and one does not."""
    return drill_cluster(nodes=_NODES, cpus=node_cpus([job]), token=f"drill-{time.time_ns()}")


def undisturbed(job: Job, *, folder: Path, progress: Progress) -> Undisturbed:
    """The run that others are held against; in this process where that gives the same bits."""
    in_process = job.roles.towers.count == 1 and job.train.mode == Mode.SYNC.value
    progress.phase("training undisturbed")
    summary = job.fit(run_folder=folder, in_process=in_process, progress=progress)
    return Undisturbed(summary=summary, losses=np.load(RunFolder.open(folder).losses), updates=updates_of(folder))


def disturbed(
    job: Job,
    hits: Sequence[Hit],
    *,
    folder: Path,
    cluster: DrillCluster,
    whole: Undisturbed,
    progress: Progress,
    limit_s: float = _LIMIT_S,
) -> Drilled:
    """The run whose roles are hit, held against the undisturbed one. What fails stands in the result."""
    saboteur = Saboteur(hits, run=folder.name, cluster=cluster, progress=progress)
    started_t = time.monotonic()
    try:
        with _limited(limit_s):
            summary = job.fit(run_folder=folder, progress=saboteur)
    except HeteroError as error:
        told = Drilled(hits=tuple(hits), missed=tuple(saboteur.pending), error=f"{type(error).__name__}: {error}")
    else:
        told = _account(summary, hits, saboteur.pending, folder=folder, whole=whole, batch_size=job.train.batch_size)
    return replace(told, seconds=time.monotonic() - started_t, left_behind=_left_behind(cluster))


def _account(
    summary: Summary,
    hits: Sequence[Hit],
    missed: Sequence[Hit],
    *,
    folder: Path,
    whole: Undisturbed,
    batch_size: int,
) -> Drilled:
    losses = np.load(RunFolder.open(folder).losses)
    same = np.array_equal(losses, whole.losses) and summary.auc == whole.summary.auc
    base, final = whole.summary.final_loss or 0.0, summary.final_loss or 0.0
    updates = updates_of(folder)
    if updates is not None and whole.updates is not None:
        lost, twice = difference(whole.updates, updates)
        counted_by = "updates of every row of tables with Adam"
    else:
        more = summary.samples - whole.summary.samples
        lost, twice = max(0, -more), max(0, more)
        counted_by = "number of rows trained"
    repeated = sum(int(str(recovery["steps_repeated"])) for recovery in summary.recoveries)
    return Drilled(
        hits=tuple(hits),
        missed=tuple(missed),
        recoveries=summary.recoveries,
        steps=len(losses),
        time_lost_s=sum(float(str(recovery["lost_s"] or 0.0)) for recovery in summary.recoveries),
        steps_repeated=repeated,
        rows_read_again=repeated * batch_size,
        rows_lost=lost,
        rows_trained_twice=twice,
        counted_by=counted_by,
        final_loss=summary.final_loss,
        undisturbed_loss=whole.summary.final_loss,
        loss_difference=abs(final - base) / max(abs(base), 1e-12),
        same_bits=same,
    )


def _left_behind(cluster: DrillCluster) -> tuple[str, ...]:
    deadline_t = time.monotonic() + _LEFT_BEHIND_S
    while (left := cluster.left_behind()) and time.monotonic() < deadline_t:
        time.sleep(0.2)
    return tuple(left)


def _count(job: Job, role: Role) -> int:
    counts: dict[Role, Callable[[], int]] = {
        Role.READER: lambda: job.roles.readers.count,
        Role.SERVER: lambda: job.roles.servers.count,
        Role.TOWER: lambda: job.roles.towers.count,
    }
    return counts.get(role, lambda: 1)()


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raises DeadlineError in the main thread, which this must be called in, when the block lasts longer."""

    passed = False

    def too_long(number: int, frame: FrameType | None) -> None:
        nonlocal passed
        passed = True
        raise _too_long(seconds)

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except SystemError:  # what Ray's compiled code makes of an exception from a signal
        if passed:
            raise _too_long(seconds) from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _too_long(seconds: float) -> DeadlineError:
    return DeadlineError(f"the run did not end within {seconds:g} s: it hangs")
