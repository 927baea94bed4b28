"""The supervisor: a `TrainingRun` on Ray. It lives in the driver; when it dies the job ends.

A phase: open sequencer and readers, start every reader's and tower's loop with one long call each, watch them. Whatever
fails ends the phase with an error that names the role; a dead actor explains the failures of those who waited for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import ray

from actors.calls import Answer
from actors.context import RunContext
from actors.failures import Failure, failure_of, root_of
from actors.group import ActorGroup
from actors.metrics import RayMetrics
from actors.naming import Member, Role
from actors.pulses import PulseRounds
from actors.replacements import Replacements
from actors.resize import ServerPlaces, ServerResizer
from actors.sequencer import SequencerNews
from actors.snapshots import SnapshotKeeper
from actors.store import store_spilled_bytes, store_used_bytes
from actors.tower_news import Peers, TowerNews
from hetero.checkpoint.manifest import merge_held
from hetero.checkpoint.pretrained import StartedPart
from hetero.checkpoint.snapshot import Snapshot, SnapshotDraft
from hetero.checkpoint.warm_start import open_warm_start
from hetero.errors import PeerLostError
from hetero.hardware.precision import PrecisionChoice, choose_precision
from hetero.keys.routing import Routing
from hetero.loops.moves import AS_SCHEDULED, ServersPlace
from hetero.loops.pace import Pace
from hetero.loops.protocols import Phase
from hetero.loops.pulses import PULSE_EVERY_S, driver_pulse
from hetero.loops.recovery import Action, Loss, Recovery, RecoveryLog, decide
from hetero.loops.results import ScoredPart, Scores
from hetero.loops.run import DataPass, RunProgress, RunReport, Sink, StoreReport, TrainOutcome, Watch, joined_scores
from hetero.loops.shares import ShareRule, TowerPace
from hetero.loops.snapshots import NOWHERE, SnapshotPlace
from hetero.loops.tower_state import ResumePoint
from hetero.observe.metrics import Pulse
from hetero.records import JobSpec

_LOOK_EVERY_S = 0.25
_LOOK_AT_STORE_EVERY_S = 2.0
_FILE_DEADLINE_S = 600.0
_JOIN_DEADLINE_S = 60.0  # building a model takes its time on a busy machine; who dies meanwhile is noticed at once
_READER_PATIENCE_S = 60.0  # beyond the run's deadline: until a new reader has started and holds what it must


class RayRun:
    """A TrainingRun whose roles are actors. Raises what `ActorGroup` raises, TowerError and JobError.

    recovery: keeps account of losses; readers that are lost are replaced while it allows for more. Default: for none.
    """

    def __init__(self, context: RunContext, *, recovery: RecoveryLog | None = None) -> None:
        self.job: JobSpec = context.job
        self._recovery = recovery or RecoveryLog(limit=0)
        if self._recovery.limit:
            context = replace(context, reader_patience_s=context.job.deadline_s + _READER_PATIENCE_S)
        self._step = 0
        self._loss: float | None = None
        self._store_peak_bytes = 0
        self._steps = 0
        self._spilled_bytes: int | None = 0
        self._paces: list[TowerPace] = []
        self._group = ActorGroup(context)
        self._places = ServerPlaces(self._group)
        self._routing = Routing.first(buckets=context.job.buckets, servers=context.job.servers.count)
        self._readers = Replacements(self._group)
        self._rounds = PulseRounds(self._group.members)
        self._metrics = RayMetrics(context.run)
        self._driver_pace = Pace(PULSE_EVERY_S)
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

    def processes(self) -> dict[Member, int]:
        """The process of every actor, on its own machine."""
        return self._group.processes()

    def start_parts(self) -> tuple[StartedPart, ...]:
        if all(part.start is None for part in self.job.tower.parts):
            return ()
        towers = self._group.of(Role.TOWER)
        started: tuple[StartedPart, ...] = self._group.call_all(towers, "start_parts", deadline_s=_FILE_DEADLINE_S)[0]
        return started

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

        rule = self._share_rule()

        def look(progress: RunProgress) -> None:
            self._divide(rule, progress)
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
        cpu_s = {role: max(0.0, seconds - before.get(role, 0.0)) for role, seconds in self._cpu_s().items()}
        self._steps = max(len(log.losses) for log in logs)
        return TrainOutcome.of(logs, cpu_s=cpu_s, snapshots=keeper.reports, servers=resizer.reports)

    def score(self, data: DataPass, *, watch: Watch) -> Scores:
        scores = joined_scores(self._run_phase(data, "score", watch))
        self._metrics.publish(driver_pulse(step=self._step, loss=self._loss, auc=scores.buckets.value()))
        return scores

    def predict(self, data: DataPass, *, sink: Sink, watch: Watch, vectors: bool = False) -> None:
        taken: list[ScoredPart] = []

        def hand_on(progress: RunProgress) -> None:
            """What was taken before this look goes on: the look has told of all malformed rows of its splits."""
            watch(progress)
            sink(taken)
            taken[:] = [part for parts in self._group.call_all(towers, "take_scored") for part in parts]

        towers = self._group.of(Role.TOWER)
        self._run_phase(data, "predict", hand_on, vectors)
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
        group = self._group
        roles = group.call_all(group.members, "role_report")
        servers = self._group.call_all(self._group.of(Role.SERVER), "state")
        store = StoreReport(peak_bytes=self._store_peak_bytes, spilled_bytes=self._spilled_bytes)
        window = self._group.call(self._group.of(Role.SEQUENCER)[0], "window_choice").result()
        return RunReport(
            roles=tuple(roles),
            servers=tuple(servers),
            precision=self.precision,
            window=window,
            store=store,
            nodes=group.nodes(),
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

    def _share_rule(self) -> ShareRule | None:
        """Where shares are to follow the towers' speeds."""
        if not self.job.shares.measured or self.job.towers.count == 1:
            return None
        return ShareRule(batch_size=self.job.batch_size)

    def _divide(self, rule: ShareRule | None, progress: RunProgress) -> None:
        """Ask for other shares where the towers' paces call for them."""
        if rule is None:
            return
        for change in progress.shares:
            rule.changed(change)
        parts = rule.look(self._paces)
        if parts is not None:
            self._group.call(self._group.of(Role.SEQUENCER)[0], "ask_shares", parts).result()

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
        meet = (len(towers) > 1 and self.job.mode.joint) or self.job.tower.mesh is not None
        rendezvous = group.call(towers[0], "rendezvous").result() if meet else None
        deadline_s, ranks = max(2 * self.job.deadline_s, _JOIN_DEADLINE_S), group.of(Role.RANK)
        taken = self.precision.taken
        joining = [group.call(tower, "join", peers, rendezvous, taken, deadline_s=deadline_s) for tower in towers]
        joining += [group.call(rank, "join", rendezvous, deadline_s=deadline_s) for rank in ranks]
        group.await_all(joining)
        self._following = [group.call(rank, "follow") for rank in ranks]

    def _run_phase(self, data: DataPass, method: str, watch: Watch, *arguments: object) -> list[Any]:
        """Run a phase to its end, a call of `method` on every tower; their results in tower order."""
        group = self._group
        sequencer = group.of(Role.SEQUENCER)[0]
        readers, towers = group.of(Role.READER), group.of(Role.TOWER)
        group.call_all(readers, "open", data)
        group.call(sequencer, "open", data, [group.peer(reader) for reader in readers]).result()
        work = [self._readers.read(reader) for reader in readers]
        results = [group.call(tower, method, *arguments) for tower in towers]
        self._watch_over([*work, *results], data=data, watch=watch)
        now = self._look(data.phase)
        watch(replace(now, pulses=(*now.pulses, *self._rounds.last())))
        return [answer.result() for answer in results]

    def _watch_over(self, work: Sequence[Answer], *, data: DataPass, watch: Watch) -> None:
        """Wait until all work is done. Raises the failure that explains the others."""
        under_way = {answer.ref: answer for answer in work}
        pace = Pace(_LOOK_AT_STORE_EVERY_S)
        while under_way:
            done, _ = ray.wait(list(under_way), num_returns=len(under_way), timeout=_LOOK_EVERY_S)
            failures = [failure for ref in done if (failure := failure_of(under_way.pop(ref)))]
            lost = self._lost(failures)
            if lost is not None:
                again = self._replace(lost, data, others_failed=any(f.member.short != lost.role for f in failures))
                under_way = {ref: answer for ref, answer in under_way.items() if answer.member != again.member}
                under_way[again.ref] = again
                continue
            if pace.due():
                self._store_peak_bytes = max(self._store_peak_bytes, store_used_bytes())
            if under_way:
                watch(self._look(data.phase))

    def _lost(self, failures: Sequence[Failure]) -> PeerLostError | None:
        """Who was lost, if anyone was. Raises any other failure."""
        try:
            if failures:
                raise root_of(failures, self._group.members)
            self._group.check_alive()
        except PeerLostError as error:
            return error
        return None

    def _replace(self, lost: PeerLostError, data: DataPass, *, others_failed: bool) -> Answer[Any]:
        """A new reader in place of the one that was lost, at work. Raises the loss when it does not come to that."""
        self._recovery.notice()
        member = next((m for m in self._group.of(Role.READER) if m.short == lost.role), None)
        loss = Loss(
            cause=str(lost),
            role=lost.role,
            alive=not others_failed,
            node_alive=member is not None and self._group.node_alive(member),
        )
        recovery = self._recovery
        decision = decide(loss, job=self.job, recovered=recovery.count, limit=recovery.limit, snapshot_step=None)
        if member is None or decision.action is not Action.REPLACE:
            raise lost
        step = self._step
        recovery.begin(
            Recovery(
                cause=str(lost),
                role=lost.role,
                action=decision.action,
                reason=decision.reason,
                phase=data.phase.value,
                step=step,
                back_to=step,
            )
        )
        work = self._readers.replace(member, data)
        recovery.replaced()
        return work

    def _look(self, phase: Phase) -> RunProgress:
        group = self._group
        sequencer = cast(SequencerNews, group.call(group.of(Role.SEQUENCER)[0], "news").result())
        towers = cast(list[TowerNews], group.call_all(group.of(Role.TOWER), "news"))
        waits: dict[str, float] = {}
        for tower in towers:
            for role, seconds in tower.waits.items():
                waits[role] = waits.get(role, 0.0) + seconds
        losses = [tower.loss for tower in towers if tower.loss is not None]
        self._step = min(tower.step for tower in towers)
        self._paces = [TowerPace(step=each.step, rows=each.rows, busy_s=each.busy_s) for each in towers]
        self._loss = _joint_loss(losses, joint=self.job.mode.joint) if len(losses) == len(towers) else None
        return RunProgress(
            phase=phase,
            step=self._step,
            steps_total=sequencer.steps_total,
            rows=sum(tower.rows for tower in towers),
            loss=self._loss,
            waits=waits,
            quality=sequencer.quality,
            shares=sequencer.shares,
            pulses=self._pulses(),
        )

    def _pulses(self) -> tuple[Pulse, ...]:
        """Of the roles, as they came. The run's own goes to Prometheus alone: the log has its steps."""
        if self._driver_pace.due():
            self._metrics.publish(driver_pulse(step=self._step, loss=self._loss))
        return self._rounds.look()


def _joint_loss(losses: Sequence[float], *, joint: bool) -> float:
    """Every tower tells the loss of the joint batch, or its share of it."""
    return losses[0] if joint else sum(losses)
