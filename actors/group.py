"""The actors of one run: build, wait until they are ready, look whether they live, close."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.calls import Answer, as_hetero_error
from actors.clients import Peer
from actors.context import THREADS_WAIT, RunContext, role_resources
from actors.naming import NAMESPACE, Member, Role
from actors.pings import Pings
from actors.placement import end_actors
from actors.processes import Process, end_here, end_process, live_nodes, nodes_of
from actors.reader import ReaderActor
from actors.sequencer import SequencerActor
from actors.server import ServerActor
from actors.tower import TowerActor
from hetero.errors import DeadlineError, NoRoomError, UserError
from hetero.records import JobSpec

_LOG = logging.getLogger(__name__)
_START_DEADLINE_S = 120.0
_CLOSE_S = 10.0
_LOOK_EVERY_S = 0.25


class ActorGroup:
    """All actors of a run, named `<run>/<role>/<index>`, each in its own bundle of one placement group.

    roles: only those, for tests of one of them. Raises NoRoomError when the cluster cannot hold them, UserError when
    a run of that name is alive there, PeerLostError or DeadlineError naming an actor that does not start.
    """

    def __init__(self, context: RunContext, *, roles: Sequence[Role] = tuple(Role)) -> None:
        self.context = context
        self.members: dict[Member, Any] = {}
        self._pings = Pings(self.members, deadline_s=context.job.deadline_s)
        self._placement: PlacementGroup | None = None
        self._processes: dict[Member, Process] = {}
        try:
            self._placement = _reserve(context.job)
            self._nodes = nodes_of(self._placement)
            self._bundles = {member: bundle for bundle, member in enumerate(_members(context.run, context.job))}
            for member in self._bundles:
                if member.role in roles:
                    self.members[member] = self._create(member)
            self._await_start(list(self.members))
        except BaseException:
            self.close()
            raise

    def of(self, role: Role) -> list[Member]:
        return [member for member in self.members if member.role is role]

    def peer(self, member: Member) -> Peer:
        return Peer(member, self.members[member], self.context.job.deadline_s)

    def call(self, member: Member, method: str, *args: object, deadline_s: float | None = None) -> Answer[Any]:
        """Begin a call; the answer's wait has the run's deadline unless another is given."""
        ref = getattr(self.members[member], method).remote(*args)
        deadline = self.context.job.deadline_s if deadline_s is None else deadline_s
        return Answer(ref=ref, member=member, what=method, deadline_s=deadline)

    def call_all(
        self, members: Iterable[Member], method: str, *args: object, deadline_s: float | None = None
    ) -> list[Any]:
        """Call several at once and wait for all."""
        return self.await_all([self.call(member, method, *args, deadline_s=deadline_s) for member in members])

    def await_all(self, answers: Sequence[Answer[Any]]) -> list[Any]:
        """Wait for all. Where that may take longer than the run's deadline, an actor that dies or is silent meanwhile
        is noticed as early as ever: raises what `check_alive` raises."""
        longest_s = max((answer.deadline_s for answer in answers), default=0.0)
        if longest_s <= self.context.job.deadline_s:
            return [answer.result() for answer in answers]
        under_way = [answer.ref for answer in answers]
        deadline_t = time.monotonic() + longest_s
        while under_way and time.monotonic() < deadline_t:
            _, under_way = ray.wait(under_way, num_returns=len(under_way), timeout=_LOOK_EVERY_S)
            self.check_alive()
        for answer in answers:
            if answer.ref in under_way:
                raise DeadlineError(
                    f"{answer.member} did not answer `{answer.what}` within {answer.deadline_s:g} s",
                    role=answer.member.short,
                )
        return [answer.result() for answer in answers]

    def place_of(self, server: int) -> tuple[PlacementGroup, int]:
        """Where a server of the run's start lies: its placement group, and the number of its bundle."""
        assert self._placement is not None
        return self._placement, 1 + self.context.job.readers.count + server

    def join(self, member: Member, handle: Any, *, process: Process) -> None:
        """An actor that was made elsewhere takes part from now on."""
        self.members[member] = handle
        self._processes[member] = process

    def leave(self, member: Member) -> None:
        """An actor takes no part any more, and ends."""
        self._pings.forget(member)
        self._processes.pop(member, None)
        with contextlib.suppress(Exception):
            ray.kill(self.members.pop(member), no_restart=True)

    def node_alive(self, member: Member) -> bool:
        """Whether the node that holds an actor is there, as far as Ray knows by now."""
        process = self._processes.get(member)
        return process is None or process.node in live_nodes()

    def end(self, member: Member) -> None:
        """End one actor for certain, a stopped one too. Its place stays."""
        self._pings.forget(member)
        with contextlib.suppress(Exception):
            ray.kill(self.members[member], no_restart=True)
        if member in self._processes:
            end_process(self._processes[member])

    def begin_again(self, member: Member) -> None:
        """A new actor in the place of one that ended. Raises PeerLostError or DeadlineError when it does not start."""
        deadline_t = time.monotonic() + _START_DEADLINE_S
        while True:
            try:
                self.members[member] = self._create(member)
                break
            except UserError:  # the cluster may not know yet that the one before has ended
                if time.monotonic() > deadline_t:
                    raise
                time.sleep(_LOOK_EVERY_S)
        assert self._placement is not None
        self._nodes = nodes_of(self._placement)  # another than before, where that node is gone
        self._await_start([member])

    def check_alive(self) -> None:
        """Raises PeerLostError or DeadlineError for an actor that died or is silent, see `Pings`; never waits."""
        self._pings.check()

    def close(self) -> None:
        """End all actors, stopped ones too, and free what they held. Never raises: it runs after failures too."""
        silent = self._pings.silent()
        for member in silent:
            self.end(member)
        if self.context.job.storage is not None:
            self._close_servers([m for m in self.of(Role.SERVER) if m not in silent])
        end_actors(self.members, self._placement)
        self._placement = None
        end_here(self._processes.values())
        self._processes.clear()

    def _close_servers(self, servers: Sequence[Member]) -> None:
        """Let servers delete their files on SSD; those of one that does not answer go when the next run starts."""
        with contextlib.suppress(Exception):
            closing = [self.members[member].close.remote() for member in servers]
            ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_S)

    def _create(self, member: Member) -> Any:
        assert self._placement is not None
        bundle = self._bundles[member]
        resources = role_resources(self.context.job)[bundle]
        options: dict[str, Any] = {
            "name": str(member),
            "namespace": NAMESPACE,
            "num_cpus": resources["CPU"],
            "num_gpus": resources.get("GPU", 0.0),
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._placement, bundle),
        }
        shell, extra = SHELLS[member.role]
        arguments = (self.context,) if member.role is Role.SEQUENCER else (self.context, member.index)
        if member.role is Role.SEQUENCER:
            job = self.context.job
            extra = {"max_concurrency": job.readers.count + job.towers.count + 4}
        if member.role is Role.TOWER and THREADS_WAIT not in os.environ:
            options["runtime_env"] = {"env_vars": {THREADS_WAIT: "PASSIVE"}}  # the cluster was started by others
        try:
            return cast(Any, ray.remote(**options, **extra))(shell).remote(*arguments)
        except ValueError as error:
            raise UserError(
                f"a run named `{self.context.run}` is alive on this cluster ({member} exists); stop it, or give this "
                "run another folder name"
            ) from error

    def _await_start(self, members: Sequence[Member]) -> None:
        deadline_t = time.monotonic() + _START_DEADLINE_S
        answers = [self.call(member, "ping") for member in members]
        for answer in answers:
            left = max(0.1, deadline_t - time.monotonic())
            try:
                pid = int(ray.get(answer.ref, timeout=left))
                self._processes[answer.member] = Process(pid=pid, node=self._nodes[self._bundles[answer.member]])
            except Exception as error:
                raise as_hetero_error(error, member=answer.member, what="start", deadline_s=_START_DEADLINE_S) from None


SHELLS: Mapping[Role, tuple[type, dict[str, Any]]] = {
    Role.SEQUENCER: (SequencerActor, {}),
    Role.READER: (ReaderActor, {"concurrency_groups": {"serve": 1, "control": 1}}),
    Role.SERVER: (ServerActor, {"concurrency_groups": {"control": 1, "snapshot": 1, "moving": 2}}),
    Role.TOWER: (TowerActor, {"concurrency_groups": {"control": 1, "snapshot": 1}}),
}


def _members(run: str, job: JobSpec) -> list[Member]:
    counts = {
        Role.SEQUENCER: 1,
        Role.READER: job.readers.count,
        Role.SERVER: job.servers.count,
        Role.TOWER: job.towers.count,
    }
    return [Member(run, role, index) for role, count in counts.items() for index in range(count)]


def _reserve(job: JobSpec) -> PlacementGroup:
    bundles = role_resources(job)
    group: PlacementGroup = placement_group(bundles, strategy="PACK")
    if not group.wait(timeout_seconds=job.deadline_s):
        remove_placement_group(group)
        total, free = cast(Any, ray).cluster_resources(), cast(Any, ray).available_resources()
        asked = [
            f"{needed:g} {kind}s, {free.get(kind, 0.0):g} of {total.get(kind, 0.0):g} are free"
            for kind in ("CPU", "GPU")
            if (needed := sum(bundle.get(kind, 0.0) for bundle in bundles))
        ]
        raise NoRoomError(
            f"the cluster has no room for this run: its {len(bundles)} actors ask for {', and '.join(asked)} after "
            f"{job.deadline_s:g} s; lower roles.* in the job, add nodes, or wait for other runs"
        )
    return group
