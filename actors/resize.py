"""The supervisor's part in a change of the number of servers, while training goes on.

Consumes   what the job's schedule or a request wants
Produces   servers of another number; a report of each change
Waits for  nobody for more than a moment: every look goes on with a change as far as it can

In order: tower 0 puts snapshots off; new servers start; every server sends the rows that move to those that will hold
them; tower 0 has the towers cut, lets servers send what changed since and go by the new routing (`actors.moving`);
rows that moved are freed, servers that leave end. Until that cut a change can be given up: nothing is lost by it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Generator, Iterable, Mapping
from typing import Any, TypeVar, cast

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.bundles import server_labels, server_resources
from actors.calls import Answer
from actors.clients import Peer
from actors.context import RunContext
from actors.group import SHELLS, ActorGroup
from actors.moving import MoveNews
from actors.naming import NAMESPACE, Member, Role
from actors.processes import Process, nodes_of
from actors.room import placement_name
from hetero.errors import CapacityError, DeadlineError, HeteroError, UserError
from hetero.exchange.moving import Sent
from hetero.keys.routing import Routing
from hetero.loops.moves import ServersChanging, ServersPlace, ServersReport, Wishes, check_number

_LOG = logging.getLogger(__name__)
_START_DEADLINE_S = 120.0
_COPY_DEADLINE_S = 3600.0
_MOMENT_S = 0.05  # most answers come within it, and then a look need not end for each

T = TypeVar("T")
Waiting = Generator[None, None, T]
"""Work that yields wherever it would have to wait."""


class ServerResizer:
    """Looked at with the run's progress. routing: that the run's servers go by now. reports: of each change so far."""

    def __init__(self, group: ActorGroup, *, places: ServerPlaces, wanted: ServersPlace, routing: Routing) -> None:
        self.reports: list[ServersReport] = []
        self.routing = routing
        self._group = group
        self._job = group.context.job
        self._tower = group.of(Role.TOWER)[0]
        self._wanted = wanted
        self._wishes = Wishes(self._job, wanted)
        self._places = places
        self._new: dict[Member, Any] = {}
        self._work: Waiting[None] | None = None
        self._over = False

    def look(self, step: int) -> None:
        """Begin a change that is wanted, or go on with the one under way; waits for a moment at most.

        Raises PeerLostError when a server is lost that rows have moved to.
        """
        self._wishes.look(step)
        if self._work is None:
            wanted = self._wishes.take(self.routing.servers)
            self._work = None if wanted is None else self._change(wanted, step)
        self._go_on()

    def finish(self) -> None:
        """Training is over: bring to an end what has a new routing, give up what has none."""
        self._over = True
        while self._work is not None:
            self._go_on()

    def close(self) -> None:
        """End new servers that take no part yet. Never raises: it runs after failures too."""
        if self._work is not None:
            self._work.close()
            self._work = None
        self._end_new()

    def _go_on(self) -> None:
        if self._work is not None and _is_over(self._work):
            self._work = None

    def _change(self, count: int, step: int) -> Waiting[None]:
        """A change to `count` servers, from the wish to the report."""
        before = self.routing.servers
        try:
            check_number(self._job, count)
            while not (yield from self._answer(self._group.call(self._tower, "hold_cuts"))):
                self._stop_if_over()
                yield
            self._wanted.told(ServersChanging(step=step, before=before, after=count))
            then = self.routing.resized(count)
            started_t = time.perf_counter()
            sent = yield from self._copy(then)
            copy_s = time.perf_counter() - started_t
            moved = yield from self._move(then)
        except HeteroError as error:
            self._give_up()
            self._report(ServersReport(step=step, before=before, after=count, error=str(error)))
            return
        rows = yield from self._settle(then)
        self._report(
            ServersReport(
                step=moved.step,
                before=before,
                after=count,
                rows=rows,
                bytes=sent.bytes + moved.sent.bytes,
                copy_s=copy_s,
                at_boundary=moved.sent.rows,
                pause_s=moved.pause_s,
            )
        )

    def _copy(self, then: Routing) -> Waiting[Sent]:
        """Start new servers, and let all send what moves; how much it was."""
        group, own = self._group, self._group.of(Role.SERVER)
        numbers = range(self.routing.servers, then.servers)
        if numbers:
            self._new = yield from self._places.start(numbers, self.routing, self._answer)
        everyone = {**{member: group.members[member] for member in own}, **self._new}
        deadline_s = self._job.deadline_s
        prepared = [
            _call(member, handle, "begin_move", then, deadline_s=deadline_s) for member, handle in everyone.items()
        ]
        yield from self._answers(prepared)
        peers = tuple(Peer(member, handle, deadline_s) for member, handle in everyone.items())
        copies = [group.call(member, "copy_out", peers, deadline_s=_COPY_DEADLINE_S) for member in own]
        total = Sent()
        for sent in (yield from self._answers(copies)):
            if sent is None:
                raise HeteroError("the run was asked to stop")
            total += sent
        return total

    def _move(self, then: Routing) -> Waiting[MoveNews]:
        """Have the towers cut and the servers go by the new routing."""
        yield from self._answer(self._group.call(self._tower, "ask_move", then))
        while True:
            over = self._over  # before the call: training may end while it is under way
            moved = yield from self._answer(self._group.call(self._tower, "move_news"))
            if moved is not None:
                return cast(MoveNews, moved)
            if over:
                self._stop_if_over()
            yield

    def _settle(self, then: Routing) -> Waiting[int]:
        """The new routing holds: let servers forget what is not theirs, and those that leave end; rows that moved."""
        group, own = self._group, self._group.of(Role.SERVER)
        self.routing = then
        for member, handle in self._new.items():
            group.join(member, handle, process=self._places.processes[member])
        new, self._new = list(self._new), {}
        freed = yield from self._answers(
            [group.call(member, "free_moved", deadline_s=_COPY_DEADLINE_S) for member in own]
        )
        yield from self._answers([group.call(member, "end_move") for member in new])
        for member in own:
            if member.index >= then.servers:
                group.leave(member)
                self._places.left(member)
        yield from self._answer(group.call(self._tower, "release_cuts"))
        return sum(freed)

    def _give_up(self) -> None:
        """Leave everything with the servers that hold it."""
        self._end_new()
        with contextlib.suppress(HeteroError):  # a role that is lost is noticed where it is missed
            self._group.call_all(self._group.of(Role.SERVER), "end_move")
            self._group.call(self._tower, "release_cuts").result()

    def _end_new(self) -> None:
        for member, handle in self._new.items():
            with contextlib.suppress(Exception):
                ray.kill(handle, no_restart=True)
            self._places.left(member)
        self._new = {}

    def _stop_if_over(self) -> None:
        if self._over:
            raise HeteroError("training ended")

    def _answer(self, answer: Answer[T]) -> Waiting[T]:
        """Wait for an answer. Raises what it raises."""
        deadline_t = time.monotonic() + answer.deadline_s
        while not ray.wait([answer.ref], timeout=_MOMENT_S)[0]:
            if time.monotonic() > deadline_t:
                raise DeadlineError(f"{answer.member} did not answer `{answer.what}` within {answer.deadline_s:g} s")
            yield
        return answer.result()

    def _answers(self, answers: Iterable[Answer[T]]) -> Waiting[list[T]]:
        results = []
        for answer in answers:
            results.append((yield from self._answer(answer)))
        return results

    def _report(self, report: ServersReport) -> None:
        self.reports.append(report)
        self._wanted.told(report)


class ServerPlaces:
    """Bundles for servers that come: those of servers that left, or new ones of placement groups of their own.

    processes: of servers that came.
    """

    def __init__(self, group: ActorGroup) -> None:
        self._group = group
        self._job = group.context.job
        self._of = {
            member: (*group.place_of(member.index), group.resources_of(member)["CPU"])
            for member in group.of(Role.SERVER)
        }
        self.processes: dict[Member, Process] = {}
        self._free: list[tuple[PlacementGroup, int, float]] = []
        self._made: list[PlacementGroup] = []

    def start(self, numbers: range, routing: Routing, answer: Any) -> Waiting[dict[Member, Any]]:
        """New server actors, alive. Raises CapacityError when the cluster has no room for them, PeerLostError or
        DeadlineError for one that does not start."""
        if len(numbers) > len(self._free):
            yield from self._reserve(len(numbers) - len(self._free))
        members = [Member(self._group.context.run, Role.SERVER, number) for number in numbers]
        self._of.update({member: self._free.pop() for member in members})
        new: dict[Member, Any] = {}
        try:
            for member in members:
                new[member] = yield from self._create(member, routing)
            for member, handle in new.items():
                pid = yield from answer(_call(member, handle, "ping", deadline_s=_START_DEADLINE_S))
                placement, bundle, _ = self._of[member]
                self.processes[member] = Process(pid=pid, node=nodes_of(placement)[bundle])
        except BaseException:
            for handle in new.values():
                with contextlib.suppress(Exception):
                    ray.kill(handle, no_restart=True)
            for member in members:
                self.left(member)
            raise
        return new

    def left(self, member: Member) -> None:
        """A server ended: another may have its place."""
        self.processes.pop(member, None)
        self._free.append(self._of.pop(member))

    def close(self) -> None:
        """Free what was reserved here."""
        for made in self._made:
            with contextlib.suppress(Exception):
                remove_placement_group(made)

    def _reserve(self, count: int) -> Waiting[None]:
        resources = server_resources(self._job)
        labels = server_labels(self._job)
        made: PlacementGroup = placement_group(
            [resources] * count,
            strategy="PACK",
            bundle_label_selector=[labels] * count if labels else None,
            name=placement_name(self._group.context.run),
        )
        ready, deadline_t = made.ready(), time.monotonic() + self._job.deadline_s
        while not ray.wait([ready], timeout=0.0)[0]:
            if time.monotonic() > deadline_t:
                remove_placement_group(made)
                free = cast(Any, ray).available_resources().get("CPU", 0.0)
                raise CapacityError(
                    f"the cluster has no room for {count} more servers: they ask for {count * resources['CPU']:g} "
                    f"CPUs, {free:g} are free after {self._job.deadline_s:g} s; add nodes, or ask for fewer servers"
                )
            yield
        self._made.append(made)
        self._free += [(made, bundle, resources["CPU"]) for bundle in range(count)]

    def _create(self, member: Member, routing: Routing) -> Waiting[Any]:
        deadline_t = time.monotonic() + _START_DEADLINE_S
        while True:
            try:
                return _new_server(self._group.context, member, routing, *self._of[member])
            except ValueError as error:  # the cluster may not know yet that one of that name has ended
                if time.monotonic() > deadline_t:
                    raise UserError(f"an actor named {member} is alive on this cluster; stop it") from error
            yield


def _new_server(
    context: RunContext, member: Member, routing: Routing, placement: PlacementGroup, bundle: int, cpus: float
) -> Any:
    shell, extra = SHELLS[Role.SERVER]
    options: Mapping[str, Any] = {
        "name": str(member),
        "namespace": NAMESPACE,
        "num_cpus": cpus,
        "max_restarts": 0,
        "max_task_retries": 0,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(placement, bundle),
    }
    return cast(Any, ray.remote(**options, **extra))(shell).remote(context, member.index, routing)


def _is_over(work: Waiting[None]) -> bool:
    """Go on with it until it waits again; whether it came to its end."""
    try:
        next(work)
    except StopIteration:
        return True
    return False


def _call(member: Member, handle: Any, method: str, *args: object, deadline_s: float) -> Answer[Any]:
    """A call of an actor that is not in the group."""
    return Answer(ref=getattr(handle, method).remote(*args), member=member, what=method, deadline_s=deadline_s)
