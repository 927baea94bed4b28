"""The supervisor: a `TrainingRun` on Ray. It lives in the driver; when it dies the job ends.

A phase: open sequencer and readers, start every reader's and tower's loop with one long call each, watch them. Whatever
fails ends the phase with an error that names the role; a dead actor explains the failures of those who waited for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import ray

from actors.calls import Answer
from actors.context import RunContext
from actors.failures import failure_of, root_of
from actors.group import ActorGroup
from actors.naming import Role
from actors.resize import ServerPlaces, ServerResizer
from actors.sequencer import SequencerNews
from actors.snapshots import SnapshotKeeper
from actors.store import store_spilled_bytes, store_used_bytes
from actors.tower import Peers, TowerNews
from hetero.checkpoint.manifest import merge_held
from hetero.checkpoint.snapshot import Snapshot, SnapshotDraft
from hetero.checkpoint.warm_start import open_warm_start
from hetero.hardware.precision import PrecisionChoice, choose_precision
from hetero.keys.routing import Routing
from hetero.loops.moves import AS_SCHEDULED, ServersPlace
from hetero.loops.pace import Pace
from hetero.loops.protocols import Phase
from hetero.loops.results import ScoredPart, Scores
from hetero.loops.run import DataPass, RunProgress, RunReport, Sink, StoreReport, TrainOutcome, Watch, joined_scores
from hetero.loops.snapshots import NOWHERE, SnapshotPlace
from hetero.loops.tower_state import ResumePoint
from hetero.records import JobSpec

_LOOK_EVERY_S = 0.25
_LOOK_AT_STORE_EVERY_S = 2.0
_FILE_DEADLINE_S = 600.0


class RayRun:
    """A TrainingRun whose roles are actors. Raises what `ActorGroup` raises, TowerError and JobError."""

    def __init__(self, context: RunContext) -> None:
        self.job: JobSpec = context.job
        self._store_peak_bytes = 0
        self._steps = 0
        self._spilled_bytes: int | None = 0
        self._group = ActorGroup(context)
        self._places = ServerPlaces(self._group)
        self._routing = Routing.first(buckets=context.job.buckets, servers=context.job.servers.count)
        try:
            self.precision = self._choose_precision()
            self._connect_towers()
        except BaseException:
            self.close()
            raise

    def restore(self, snapshot: Snapshot) -> None:
        steps = ResumePoint.of(snapshot).cursor.step
        group = self._group
        group.call_all(group.of(Role.SERVER), "restore", snapshot.path, steps, deadline_s=_FILE_DEADLINE_S)
        group.call_all(group.of(Role.TOWER), "restore", snapshot.path, deadline_s=_FILE_DEADLINE_S)

    def warm_start(self) -> int:
        spec, group = self.job.warm_start, self._group
        assert spec is not None
        path = open_warm_start(self.job).path
        if spec.dense:
            group.call_all(group.of(Role.TOWER), "warm_start", path, deadline_s=_FILE_DEADLINE_S)
        rows = group.call_all(group.of(Role.SERVER), "warm_start", path, deadline_s=_FILE_DEADLINE_S)
        return sum(rows)

    def train(
        self,
        data: DataPass,
        *,
        watch: Watch,
        snapshots: SnapshotPlace = NOWHERE,
        servers: ServersPlace = AS_SCHEDULED,
    ) -> TrainOutcome:
        before, spilled_before = self._cpu_s(), store_spilled_bytes()
        resizer = ServerResizer(self._group, places=self._places, wanted=servers, routing=self._routing)
        keeper = SnapshotKeeper(self._group, place=snapshots, routing=lambda: resizer.routing.version)

        def look(progress: RunProgress) -> None:
            resizer.look(progress.step)
            keeper.look(progress.step)
            watch(progress)

        try:
            digest = data.digest if snapshots.folder is not None else None
            logs = self._run_phase(data, "train", look, digest)
            resizer.finish()
            keeper.finish()
        finally:
            self._routing = resizer.routing
            resizer.close()
            keeper.close()
        self._note_spilled(spilled_before, store_spilled_bytes())
        cpu_s = {role: seconds - before.get(role, 0.0) for role, seconds in self._cpu_s().items()}
        self._steps = max(len(log.losses) for log in logs)
        return TrainOutcome.of(logs, cpu_s=cpu_s, snapshots=keeper.reports, servers=resizer.reports)

    def score(self, data: DataPass, *, watch: Watch) -> Scores:
        return joined_scores(self._run_phase(data, "score", watch))

    def predict(self, data: DataPass, *, sink: Sink, watch: Watch) -> None:
        taken: list[ScoredPart] = []

        def hand_on(progress: RunProgress) -> None:
            """What was taken before this look goes on: the look has told of all malformed rows of its splits."""
            watch(progress)
            sink(taken)
            taken[:] = [part for parts in self._group.call_all(towers, "take_scored") for part in parts]

        towers = self._group.of(Role.TOWER)
        self._run_phase(data, "predict", hand_on)
        hand_on(self._look(data.phase))

    def save(self, folder: Path) -> None:
        with SnapshotDraft.begin(folder.parent, name=folder.name, step=self._steps) as draft:
            servers = self._group.of(Role.SERVER)
            rows = self._group.call_all(servers, "save", draft.path, deadline_s=_FILE_DEADLINE_S)
            tower = self._group.of(Role.TOWER)[0]
            dense = self._group.call(tower, "save", draft.path, deadline_s=_FILE_DEADLINE_S).result()
            files = [dense, *(entry for own in rows for entry in own.files)]
            draft.commit(self.job, files=files, held=merge_held([own.held for own in rows]))

    def load(self, folder: Path) -> None:
        members = [*self._group.of(Role.SERVER), *self._group.of(Role.TOWER)]
        self._group.call_all(members, "load", folder.absolute(), deadline_s=_FILE_DEADLINE_S)

    def report(self) -> RunReport:
        roles = self._group.call_all(self._group.members, "role_report")
        servers = self._group.call_all(self._group.of(Role.SERVER), "state")
        store = StoreReport(peak_bytes=self._store_peak_bytes, spilled_bytes=self._spilled_bytes)
        window = self._group.call(self._group.of(Role.SEQUENCER)[0], "window_choice").result()
        return RunReport(
            roles=tuple(roles), servers=tuple(servers), precision=self.precision, window=window, store=store
        )

    @property
    def name(self) -> str:
        """The first part of its actors' names."""
        return self._group.context.run

    def pid_of(self, role: Role, index: int) -> int:
        """The process of one actor, on its own machine."""
        member = self._group.of(role)[index]
        return int(self._group.call(member, "ping").result())

    def close(self) -> None:
        self._group.close()
        self._places.close()

    def _choose_precision(self) -> PrecisionChoice:
        """One for all towers, from what each of their machines has."""
        return choose_precision(self.job.precision, self._group.call_all(self._group.of(Role.TOWER), "fast_bf16"))

    def _note_spilled(self, before: int | None, after: int | None) -> None:
        known = self._spilled_bytes is not None and before is not None and after is not None
        self._spilled_bytes = (self._spilled_bytes or 0) + (after or 0) - (before or 0) if known else None

    def _cpu_s(self) -> dict[str, float]:
        """CPU seconds of every actor so far, by role and index."""
        return {role.name: role.cpu_s for role in self._group.call_all(self._group.members, "role_report")}

    def _connect_towers(self) -> None:
        group = self._group
        towers = group.of(Role.TOWER)
        peers = Peers(
            sequencer=group.peer(group.of(Role.SEQUENCER)[0]),
            readers=[group.peer(member) for member in group.of(Role.READER)],
            servers=[group.peer(member) for member in group.of(Role.SERVER)],
        )
        meet = len(towers) > 1 and self.job.mode.joint
        rendezvous = group.call(towers[0], "rendezvous").result() if meet else None
        group.call_all(towers, "join", peers, rendezvous, self.precision.taken, deadline_s=2 * self.job.deadline_s)

    def _run_phase(self, data: DataPass, method: str, watch: Watch, *arguments: object) -> list[Any]:
        """Run a phase to its end, a call of `method` on every tower; their results in tower order."""
        group = self._group
        sequencer = group.of(Role.SEQUENCER)[0]
        readers, towers = group.of(Role.READER), group.of(Role.TOWER)
        group.call_all(readers, "open", data)
        group.call(sequencer, "open", data, [group.peer(reader) for reader in readers]).result()
        work = [group.call(reader, "read", group.peer(sequencer)) for reader in readers]
        results = [group.call(tower, method, *arguments) for tower in towers]
        self._watch_over([*work, *results], data=data, watch=watch)
        watch(self._look(data.phase))
        return [answer.result() for answer in results]

    def _watch_over(self, work: Sequence[Answer], *, data: DataPass, watch: Watch) -> None:
        """Wait until all work is done. Raises the failure that explains the others."""
        under_way = {answer.ref: answer for answer in work}
        pace = Pace(_LOOK_AT_STORE_EVERY_S)
        while under_way:
            done, _ = ray.wait(list(under_way), num_returns=len(under_way), timeout=_LOOK_EVERY_S)
            failures = [failure for ref in done if (failure := failure_of(under_way.pop(ref)))]
            if failures:
                raise root_of(failures, self._group.members)
            self._group.check_alive()
            if pace.due():
                self._store_peak_bytes = max(self._store_peak_bytes, store_used_bytes())
            if under_way:
                watch(self._look(data.phase))

    def _look(self, phase: Phase) -> RunProgress:
        group = self._group
        sequencer = cast(SequencerNews, group.call(group.of(Role.SEQUENCER)[0], "news").result())
        towers = cast(list[TowerNews], group.call_all(group.of(Role.TOWER), "news"))
        waits: dict[str, float] = {}
        for tower in towers:
            for role, seconds in tower.waits.items():
                waits[role] = waits.get(role, 0.0) + seconds
        losses = [tower.loss for tower in towers if tower.loss is not None]
        return RunProgress(
            phase=phase,
            step=min(tower.step for tower in towers),
            steps_total=sequencer.steps_total,
            rows=sum(tower.rows for tower in towers),
            loss=_joint_loss(losses, joint=self.job.mode.joint) if len(losses) == len(towers) else None,
            waits=waits,
            quality=sequencer.quality,
        )


def _joint_loss(losses: Sequence[float], *, joint: bool) -> float:
    """Every tower tells the loss of the joint batch, or its share of it."""
    return losses[0] if joint else sum(losses)
