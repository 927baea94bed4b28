"""The actors of one run: build, wait until they are ready, look whether they live, close."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.bundles import Bundle, bundles_of
from actors.calls import Answer, as_hetero_error
from actors.clients import Peer
from actors.context import RunContext, missing_variables
from actors.naming import NAMESPACE, Member, Role
from actors.pings import Pings
from actors.placement import end_actors
from actors.processes import Process, end_here, end_process, live_nodes, node_names, nodes_of
from actors.reader import ReaderActor
from actors.room import placement_name
from actors.sequencer import SequencerActor
from actors.server import ServerActor
from actors.text_rank import TextRankActor
from actors.tower import TowerActor
from hetero.errors import DeadlineError, NoRoomError, UserError
from hetero.records import JobSpec

_LOG = logging.getLogger(__name__)
_START_DEADLINE_S = 120.0
_CLOSE_S = 10.0
_LOOK_EVERY_S = 0.25


class ActorGroup:
    """All actors of a run, named `<run>/<role>/<index>`, in the bundles of one placement group.

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
            reserved = bundles_of(context.job)
            self._placement = _reserve(context, reserved)
            self._nodes = nodes_of(self._placement)
            self._bundles = {
                Member(context.run, *number): place for place, one in enumerate(reserved) for number in one.members
            }
            self._asked = {
                Member(context.run, *number): asked for one in reserved for number, asked in one.members.items()
            }
            for member in sorted(self._bundles, key=lambda each: (list(Role).index(each.role), each.index)):
                if member.role in roles:
                    self.members[member] = self._create(member)
            self._await_start(list(self.members))
        except BaseException:
            self.close()
            raise

    def of(self, role: Role) -> list[Member]:
        return [member for member in self.members if member.role is role]

    def processes(self) -> dict[Member, int]:
        """Numbers of the actors' processes, each on its own machine."""
        return {member: process.pid for member, process in self._processes.items()}

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
        return self._placement, self._bundles[Member(self.context.run, Role.SERVER, server)]

    def resources_of(self, member: Member) -> Mapping[str, float]:
        """What an actor of the run's start asks for."""
        return self._asked[member]

    def nodes(self) -> dict[str, str]:
        """The node of every actor: its address, and the labels it was given."""
        names = node_names()
        return {member.short: names.get(process.node, process.node) for member, process in self._processes.items()}

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
        options: dict[str, Any] = {
            "name": str(member),
            "namespace": NAMESPACE,
            "num_cpus": self._asked[member]["CPU"],
            "num_gpus": self._asked[member].get("GPU", 0),
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._placement, bundle),
        }
        shell, extra = SHELLS[member.role]
        arguments = (self.context,) if member.role is Role.SEQUENCER else (self.context, member.index)
        if member.role is Role.SEQUENCER:
            job = self.context.job
            extra = {"max_concurrency": job.readers.count + job.towers.count + 4}
        if member.role in _THREADED and (variables := missing_variables()):
            options["runtime_env"] = {"env_vars": variables}
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


_THREADED = (Role.TOWER, Role.RANK, Role.SEQUENCER)
"""Roles that compute by several threads, or fetch from other nodes by several."""

SHELLS: Mapping[Role, tuple[type, dict[str, Any]]] = {
    Role.SEQUENCER: (SequencerActor, {}),
    Role.READER: (ReaderActor, {"concurrency_groups": {"serve": 1, "control": 1}}),
    Role.SERVER: (ServerActor, {"concurrency_groups": {"control": 1, "snapshot": 1, "moving": 2}}),
    Role.TOWER: (TowerActor, {"concurrency_groups": {"control": 1, "snapshot": 1}}),
    Role.RANK: (TextRankActor, {"concurrency_groups": {"control": 1}}),
}


def _reserve(context: RunContext, bundles: Sequence[Bundle]) -> PlacementGroup:
    job = context.job
    group: PlacementGroup = placement_group(
        [dict(bundle.resources) for bundle in bundles],
        strategy="PACK",
        bundle_label_selector=[dict(bundle.labels) for bundle in bundles] if job.nodes else None,
        name=placement_name(context.run),
    )
    if not _room_came(group, job):
        remove_placement_group(group)
        raise NoRoomError(_no_room(job, bundles))
    return group


def room_deadline_s(job: JobSpec) -> float:
    """How long a run waits for room on the cluster."""
    return job.deadline_s if job.room_deadline_s is None else job.room_deadline_s


def _room_came(group: PlacementGroup, job: JobSpec) -> bool:
    """Wait for room; an autoscaler sees what is asked for and starts nodes meanwhile."""
    whole_s = room_deadline_s(job)
    soon_s = min(job.deadline_s, whole_s)
    if group.wait(timeout_seconds=soon_s):
        return True
    left_s = whole_s - soon_s
    if left_s <= 0:
        return False
    _LOG.info("no room on the cluster yet; waiting up to %g s more for nodes to come (run.room_deadline_s)", left_s)
    return bool(group.wait(timeout_seconds=left_s))


def _no_room(job: JobSpec, bundles: Sequence[Bundle]) -> str:
    needed = sum(bundle.resources["CPU"] for bundle in bundles)
    total = cast(Any, ray).cluster_resources().get("CPU", 0.0)
    free = cast(Any, ray).available_resources().get("CPU", 0.0)
    gpus = sum(bundle.resources.get("GPU", 0.0) for bundle in bundles)
    there_are = cast(Any, ray).cluster_resources().get("GPU", 0.0)
    said = (
        f"the cluster has no room for this run: its actors, in {len(bundles)} bundles, ask for "
        + (f"{gpus:g} GPUs, the cluster has {there_are:g}, and " if gpus else "")
        + f"{needed:g} CPUs, {free:g} of {total:g} are free after {room_deadline_s(job):g} s"
    )
    if not job.nodes:
        return f"{said}; lower roles.* in the job, add nodes, or wait for them or for other runs (run.room_deadline_s)"
    asked = Counter(f"{_named(bundle.resources)} on a node with {_named(bundle.labels)}" for bundle in bundles)
    there = Counter(
        f"{_named({k: v for k, v in node['Resources'].items() if k in ('CPU', 'GPU')})} with {_named(node['Labels'])}"
        for node in cast(Any, ray).nodes()
        if node["Alive"]
    )
    return (
        f"{said}. Asked for: {_counted(asked)}. Nodes that are there: {_counted(there)}. (1) add nodes with those "
        "labels; (2) plan for the nodes that are there; (3) wait for them or for other runs (run.room_deadline_s)"
    )


def _named(values: Mapping[str, object]) -> str:
    shown = [f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in values.items()]
    return ", ".join(each for each in shown if not each.startswith("ray.io/node-id")) or "any label"


def _counted(counts: Counter[str]) -> str:
    return "; ".join(f"{count} x ({what})" for what, count in counts.items())
