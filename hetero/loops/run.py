"""One run, whoever executes it: what a driver asks for and what it gets back.

`LocalRun` (this package) does everything in one process and thread; the actors' supervisor does it on Ray.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Protocol

import numpy as np

from hetero.checkpoint.snapshot import Snapshot
from hetero.data.sources import check_schema, list_splits
from hetero.errors import DataError
from hetero.exchange.messages import RejectedGradient
from hetero.exchange.server import ServerState
from hetero.exchange.staleness import StalenessCounts, merged
from hetero.exchange.traffic import total_traffic
from hetero.exchange.window_size import WindowChoice
from hetero.hardware.precision import PrecisionChoice
from hetero.keys.sequencer import InputQuality
from hetero.loops.moves import AS_SCHEDULED, ServersPlace, ServersReport
from hetero.loops.protocols import Phase
from hetero.loops.results import ScoredPart, Scores, StepLog
from hetero.loops.snapshots import NOWHERE, SnapshotPlace, SnapshotReport
from hetero.metrics.bucketed import BucketedAuc
from hetero.observe.metrics import Pulse
from hetero.observe.spans import SpanTotals
from hetero.records import F64, START, Cursor, DataSpec, JobSpec, SharesFrom, SplitRef

if TYPE_CHECKING:
    from hetero.checkpoint.pretrained import StartedPart


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPass:
    """Data a run reads, resolved to splits: what readers and sequencer are told at the start of a phase.

    start: where to begin in the stream of all passes.
    """

    phase: Phase
    data: DataSpec
    splits: tuple[SplitRef, ...]
    epochs: int
    max_steps: int | None
    start: Cursor = START

    @property
    def digest(self) -> str:
        """SHA-256 of what decides the order of rows: the splits without their folders, and how they are shuffled."""
        splits = [(PurePath(s.path).name, s.format.value, s.part, s.start, s.stop) for s in self.splits]
        told = repr((splits, self.data.shuffle, self.data.seed))
        return hashlib.sha256(told.encode("utf-8")).hexdigest()

    @staticmethod
    def open(data: DataSpec, *, phase: Phase, epochs: int = 1, max_steps: int | None = None) -> DataPass:
        """Find the files and check their columns. Raises DataError."""
        check_schema(data)
        splits = list_splits(data)
        if not splits:
            raise DataError(f"{', '.join(data.paths)}: no rows in any file; give files with data")
        return DataPass(phase=phase, data=data, splits=splits, epochs=epochs, max_steps=max_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """Where a phase stands. waits: seconds the towers have waited so far, by role waited for. Since the last look:
    shares, changes of how batches are divided among towers, and pulses, those of roles that came."""

    phase: Phase
    step: int
    steps_total: int | None
    rows: int
    loss: float | None
    waits: Mapping[str, float]
    quality: InputQuality
    shares: tuple[SharesFrom, ...] = ()
    pulses: tuple[Pulse, ...] = ()


Watch = Callable[[RunProgress], None]
Sink = Callable[[Sequence[ScoredPart]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOutcome:
    """What training did. losses float64 [steps], of the joint batch. rows: over all towers.

    started_t, first_step_t, last_step_t: unix seconds, of the first tower to start and the last to end where towers do
    not keep in step. rejected_rows: gradients of rows not applied; rejected_dense:
    steps in which a dense parameter's gradient was not finite, by parameter. waits: seconds towers waited while
    training, added up over towers, by role waited for. step_ends_t float64 [steps]: unix seconds at the end of the
    first tower's steps. cpu_s: seconds of CPU time while training, by role and index. earlier_s: seconds of training
    before the run was last resumed; losses, rows and step_ends_t hold what was done then. stopped: by a cut, before the
    end of the data. snapshots: those taken since. servers: changes of their number since.
    """

    losses: F64
    rows: int
    started_t: float
    first_step_t: float | None
    last_step_t: float | None
    waits: Mapping[str, float]
    step_ends_t: F64
    cpu_s: Mapping[str, float]
    rejected_rows: int
    rejected_examples: tuple[RejectedGradient, ...]
    rejected_dense: Mapping[str, int]
    earlier_s: float = 0.0
    stopped: bool = False
    snapshots: tuple[SnapshotReport, ...] = ()
    servers: tuple[ServersReport, ...] = ()

    @staticmethod
    def of(
        logs: Sequence[StepLog],
        *,
        cpu_s: Mapping[str, float],
        snapshots: Sequence[SnapshotReport] = (),
        servers: Sequence[ServersReport] = (),
    ) -> TrainOutcome:
        """From the logs of all towers, in tower order. Every tower takes part in every step, if with no rows."""
        told = logs[:1] if logs[0].joint else logs
        rejected_dense: dict[str, int] = {}
        for log in told:
            for name, steps in log.rejected_dense.items():
                rejected_dense[name] = rejected_dense.get(name, 0) + steps
        waits: dict[str, float] = {}
        for log in logs:
            for role, waited in log.waits.items():
                waits[role] = waits.get(role, 0.0) + waited
        return TrainOutcome(
            losses=np.sum([np.asarray(log.losses, np.float64) for log in told], axis=0),
            rows=sum(log.rows for log in logs),
            started_t=min(log.started_t for log in told),
            first_step_t=min((log.first_step_t for log in told if log.first_step_t), default=None),
            last_step_t=max((log.last_step_t for log in told if log.last_step_t), default=None),
            waits=waits,
            step_ends_t=np.asarray(logs[0].step_ends_t, np.float64),
            cpu_s=cpu_s,
            rejected_rows=sum(log.rejected_rows for log in logs),
            rejected_examples=tuple(example for log in logs for example in log.rejected_examples),
            rejected_dense=rejected_dense,
            earlier_s=logs[0].earlier_s,
            stopped=logs[0].stopped,
            snapshots=tuple(snapshots),
            servers=tuple(servers),
        )

    @property
    def training_s(self) -> float:
        """Seconds from the start of training to the end of the last step, without those the run was not alive."""
        return self.earlier_s + (self.last_step_t or self.started_t) - self.started_t


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleReport:
    """What one role spent. name: `tower/0` and the like. traffic: bytes a tower moved, by path (`Traffic`). device: of
    a tower, where it computed and what updated its leased rows."""

    name: str
    spans: SpanTotals
    peak_rss_bytes: int
    cpu_s: float
    traffic: Mapping[str, int] = field(default_factory=dict)
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """Ray's object store while training. peak_bytes: the most seen in it, over all nodes. spilled_bytes: to disk,
    None when the cluster did not say."""

    peak_bytes: int
    spilled_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """roles: in the order sequencer, readers, servers, towers. servers: one state each. window: of leases, or None.
    store: None in one process. nodes: where each role is, by its name; empty in one process.
    """

    roles: tuple[RoleReport, ...]
    servers: tuple[ServerState, ...]
    precision: PrecisionChoice
    window: WindowChoice | None = None
    store: StoreReport | None = None
    nodes: Mapping[str, str] = field(default_factory=dict)

    @property
    def towers(self) -> tuple[RoleReport, ...]:
        return tuple(role for role in self.roles if role.name.startswith("tower/"))

    @property
    def staleness(self) -> StalenessCounts:
        """How stale rows were when they were pushed, over all servers."""
        return merged(server.staleness for server in self.servers)

    @property
    def traffic(self) -> dict[str, int]:
        """Bytes all towers moved, by path."""
        return total_traffic([role.traffic for role in self.towers])

    @property
    def tiers(self) -> dict[str, int]:
        """Counts of the servers' tiers, added up; see `hetero.embedding.tiered.tier_counts`."""
        return _added_up(server.tiers for server in self.servers)

    @property
    def policies(self) -> dict[str, int]:
        """What the servers' policies did, added up; see `PolicyRows.policy_counts`."""
        return _added_up(server.policies for server in self.servers)

    @property
    def drops(self) -> dict[tuple[int, str, str], int]:
        """Rows that went over all servers, by day, table and reason, in that order."""
        total: Counter[tuple[int, str, str]] = Counter()
        for server in self.servers:
            for drops in server.drops:
                total[drops.day, drops.table, drops.reason] += drops.rows
        return dict(sorted(total.items()))

    @property
    def rows(self) -> dict[str, int]:
        """Rows per table over all servers."""
        return _added_up(server.rows for server in self.servers)


def _added_up(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for of_server in counts:
        for name, count in of_server.items():
            total[name] = total.get(name, 0) + count
    return total


class TrainingRun(Protocol):
    """A job's roles, alive, in one process or many."""

    @property
    def job(self) -> JobSpec: ...

    @property
    def precision(self) -> PrecisionChoice:
        """What all towers of the run multiply matrices in."""

    def restore(self, snapshot: Snapshot) -> None:
        """Take up what a snapshot holds, before anything was trained; the data pass then starts at its cursor."""

    def warm_start(self) -> int:
        """Begin with the rows and parameters that the job's `warm_start` names; the number of rows.

        Raises UserError when they do not fit, DataError when they are damaged.
        """

    def start_parts(self) -> tuple[StartedPart, ...]:
        """Let parts of the towers begin with the pretrained models that the job names (`tower.parts[*].from`).

        Raises UserError when they do not fit, DataError when they cannot be read.
        """

    def train(
        self,
        data: DataPass,
        *,
        watch: Watch,
        snapshots: SnapshotPlace = NOWHERE,
        servers: ServersPlace = AS_SCHEDULED,
    ) -> TrainOutcome:
        """Train over the data. What `watch` raises ends the run. A snapshot that cannot be written, and a change of the
        number of servers that cannot be made, are told of, and training goes on."""

    def score(self, data: DataPass, *, watch: Watch) -> Scores:
        """Predict every row; rows in the order of towers, then steps."""

    def predict(self, data: DataPass, *, sink: Sink, watch: Watch, vectors: bool = False) -> None:
        """Predict every row and hand the predictions on while they come, each tower's in step order; with `vectors`
        what the text half makes of the texts too.

        `watch` is told of a split's malformed rows before `sink` gets rows of that split.
        """

    def save(self, folder: Path) -> None:
        """Write the model (`hetero.checkpoint`): a snapshot without cursors."""

    def load(self, folder: Path) -> None:
        """Take rows and dense parameters from a model written by `save`."""

    def report(self) -> RunReport: ...

    def close(self) -> None: ...


def joined_scores(parts: Sequence[Scores]) -> Scores:
    """The scores of several towers, one after the other."""
    buckets = BucketedAuc()
    for part in parts:
        buckets = buckets.merge(part.buckets)
    weights = [part.weights for part in parts if part.weights is not None]
    gauc_ids = [part.gauc_ids for part in parts if part.gauc_ids is not None]
    return Scores(
        labels=np.concatenate([part.labels for part in parts]),
        predictions=np.concatenate([part.predictions for part in parts]),
        weights=np.concatenate(weights) if weights else None,
        gauc_ids=np.concatenate(gauc_ids) if gauc_ids else None,
        buckets=buckets,
    )
