"""Measures each task of a job's flow, one at a time, on this node: what `hetero profile` runs on every kind.

Everything is the code that trains: readers, windows, servers and a tower in this process and thread. What is measured
is a run of a few steps, at several batch sizes; rows that a batch asks for mostly have been there before.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any, Generic

import torch
from torch import nn

from hetero.errors import DataError
from hetero.exchange.client import LocalServer, ShardedRowClient
from hetero.exchange.leases import LeasedRows
from hetero.exchange.messages import (
    LeaseReply,
    LeaseRequest,
    Pending,
    PullReply,
    PullRequest,
    PushReply,
    PushRequest,
    ReturnRequest,
)
from hetero.exchange.sources import PulledRows, RowSource
from hetero.hardware.precision import choose_precision, fast_bf16_here
from hetero.hardware.probe import Machine
from hetero.keys.sequencer import Sequencer
from hetero.keys.windows import TowerWindow
from hetero.loops.batches import InlineStream
from hetero.loops.local_servers import LocalServers
from hetero.loops.modes import dense_side
from hetero.loops.profile_parts import block_points, hash_point, input_costs, used_bytes, window_point
from hetero.loops.protocols import BatchStream
from hetero.loops.reader import Reader, make_sequencer
from hetero.loops.run import DataPass
from hetero.loops.sparse_lane import Result, StepLane
from hetero.loops.tower import Tower
from hetero.loops.windows import InlineWindows
from hetero.observe.spans import Span, SpanClock, SpanTotals
from hetero.parallel.group import SoleTower
from hetero.planning.task_profile import BESIDE_GATHER, BESIDE_RETURN, NodeProfile, Point
from hetero.records import AUTO_WINDOW, Batch, BatchSpec, JobSpec, Mode, Precision, RoleSpec, ShareSpec, SnapshotSpec

_WARM_STEPS = 3
_LEAST_STEPS = 6
_MOST_STEPS = 40
_SECONDS = 1.5
_PASSES = 1000
_AUTO_STEPS = 8
_BUILDING = "building windows"


@dataclass(slots=True)
class Spent:
    """Seconds and CPU time by task."""

    seconds: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def on(self, task: str) -> Iterator[None]:
        """Charge a task with what happens inside."""
        started, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.add(task, seconds=time.perf_counter() - started, cpu_s=time.process_time() - cpu)

    def add(self, task: str, *, seconds: float, cpu_s: float) -> None:
        self.seconds[task] = self.seconds.get(task, 0.0) + seconds
        self.cpu_s[task] = self.cpu_s.get(task, 0.0) + cpu_s


class _TimedServer(LocalServer):
    """A server in this process that says what its calls took."""

    def __init__(self, server: Any, spent: Spent) -> None:
        super().__init__(server)
        self._spent = spent

    def pull(self, request: PullRequest) -> Pending[PullReply]:
        with self._spent.on("lookup"):
            return super().pull(request)

    def push(self, request: PushRequest) -> Pending[PushReply]:
        with self._spent.on("push"):
            return super().push(request)

    def lease(self, request: LeaseRequest) -> Pending[LeaseReply]:
        with self._spent.on("lookup"):
            return super().lease(request)

    def give_back(self, request: ReturnRequest) -> Pending[None]:
        with self._spent.on("push"):
            return super().give_back(request)


class _BuiltWindows:
    """Windows for leasing. They are built when they are asked for, in the middle of a step, and are no part of it."""

    def __init__(self, windows: InlineWindows, *, clock: SpanClock, spent: Spent) -> None:
        self._windows, self._clock, self._spent = windows, clock, spent

    def next_window(self) -> TowerWindow | None:
        with self._clock.span(Span.WAIT_SEQUENCER), self._spent.on(_BUILDING):
            return self._windows.next_window()

    def window_here(self) -> TowerWindow | None:
        return self.next_window()

    def crossed(self, share: float) -> None:
        self._windows.crossed(share)


class _TimedLane(StepLane):
    """Rows in the step's thread, which says what that thread does before it asks for what was begun: first the reading
    of texts, then its backward pass."""

    def __init__(self, clock: SpanClock, spent: Spent) -> None:
        super().__init__(clock)
        self._spent = spent
        self._next = cycle((BESIDE_GATHER, BESIDE_RETURN))

    def begin(self, work: Callable[[], Result]) -> Pending[Result]:
        return _Meanwhile(work(), next(self._next), self._spent)


class _Meanwhile(Generic[Result]):
    def __init__(self, value: Result, task: str, spent: Spent) -> None:
        self._value, self._task, self._spent = value, task, spent
        self._done_t = time.perf_counter()

    def result(self) -> Result:
        self._spent.add(self._task, seconds=time.perf_counter() - self._done_t, cpu_s=0.0)
        return self._value


def profile_node(
    job: JobSpec,
    *,
    kind: str,
    machine: Machine,
    data: DataPass,
    make: Callable[[], nn.Module],
    sizes: Sequence[int],
) -> NodeProfile:
    """Measure every task at batches of `sizes` rows. Raises DataError when the data have no rows."""
    torch.set_num_threads(job.towers.threads)
    tasks: dict[str, list[Point]] = {}
    costs = input_costs(job, data)
    for rows in sorted(set(sizes)):
        for name, point in _at(job, rows=rows, data=data, make=make, costs=costs).items():
            tasks.setdefault(name, []).append(point)
    return NodeProfile(
        kind=kind,
        hardware=hardware_in_words(machine),
        fingerprint=hashlib.sha256(hardware_in_words(machine).encode()).hexdigest()[:16],
        threads=job.towers.threads,
        tasks={name: tuple(points) for name, points in tasks.items()},
    )


def hardware_in_words(machine: Machine) -> str:
    """What of a machine decides how fast it is; of equal machines the same words."""
    devices = ", ".join(device.name for device in machine.accelerators) or "no accelerator"
    flags = " ".join(machine.cpu_flags)
    return f"{machine.cpu_model} ({flags}), {machine.cores:g} cores, {machine.memory_bytes >> 30} GiB, {devices}"


def default_sizes(job: JobSpec) -> tuple[int, ...]:
    """A quarter, half and all of the rows that a tower gets in equal shares; and all of the batch."""
    own = max(job.batch_size // job.towers.count, 16)
    return tuple(sorted({max(own // 4, 16), max(own // 2, 16), own, job.batch_size}))


def _at(
    job: JobSpec, *, rows: int, data: DataPass, make: Callable[[], nn.Module], costs: Mapping[str, Point]
) -> dict[str, Point]:
    """All tasks on batches of `rows`. costs: of reading and parsing, whatever the batch."""
    flow = _Flow(_alone(job, rows=rows), data=data, module=make())
    window = max(flow.job.window, 1)  # what happens between windows is shared out over whole ones
    flow.steps(-(-_WARM_STEPS // window) * window)
    flow.forget()
    started, steps = time.perf_counter(), 0
    while steps < _LEAST_STEPS or (steps < _MOST_STEPS and time.perf_counter() - started < _SECONDS):
        flow.steps(window)
        steps += window
    points = flow.points(steps)
    blocks = block_points(flow.module, flow.inputs, rows=rows, is_bf16=flow.is_bf16)
    for whole in ("forward", "backward"):
        flops = sum(point.flops for name, point in blocks.items() if name.startswith(f"{whole}/"))
        points[whole] = replace(points[whole], flops=flops)
    return {
        **{name: _scaled(point, rows) for name, point in costs.items()},
        **points,
        "window": window_point(flow.job, flow.batches),
        "hash": hash_point(flow.job, flow.batches),
        **blocks,
    }


def _scaled(point: Point, rows: int) -> Point:
    factor = rows / point.rows
    return Point(rows=rows, seconds=point.seconds * factor, cpu_s=point.cpu_s * factor, bytes=point.bytes * factor)


def _alone(job: JobSpec, *, rows: int) -> JobSpec:
    """The job with one of each role in `sync`, and windows of a fixed length where it has windows."""
    return replace(
        job,
        batch_size=rows,
        readers=RoleSpec(threads=job.readers.threads),
        servers=RoleSpec(threads=job.servers.threads),
        towers=RoleSpec(threads=job.towers.threads),
        window=_AUTO_STEPS if job.window == AUTO_WINDOW else job.window,
        window_bytes=1 << 40,
        mode=Mode.SYNC,
        epochs=_PASSES,
        max_steps=None,
        storage=None,
        snapshots=SnapshotSpec(),
        server_schedule=(),
        nodes=(),
        shares=ShareSpec(),
    )


class _Flow:
    """One reader, sequencer, server and tower, and what a few steps of theirs took."""

    def __init__(self, job: JobSpec, *, data: DataPass, module: nn.Module) -> None:
        self.job, self.module = job, module
        self.spent = Spent()
        self.batches: list[tuple[BatchSpec, Batch]] = []
        self.inputs: tuple[Any, ...] = ()
        self._clock = SpanClock()
        self._reader = Reader(job, index=0, data=data.data, splits=data.splits)
        sequencer = make_sequencer(
            job, data=data.data, splits=len(data.splits), epochs=_PASSES, max_steps=None, towers=1
        )
        own = LocalServers(job)
        self._client = ShardedRowClient(
            job,
            tower=0,
            servers=[_TimedServer(server, self.spent) for server in own.servers],
            clock=self._clock,
            connect=own.handles,
        )
        self._time_forward(module)
        dense = dense_side(
            job,
            tower=0,
            module=module,
            client=self._client,
            servers=own.handles(own.routing),
            group=SoleTower(),
            clock=self._clock,
        )
        precision = choose_precision(job.precision, [fast_bf16_here()]).taken
        self.is_bf16 = precision is Precision.BF16
        self._tower = Tower(
            job,
            module=module,
            client=self._client,
            dense=dense,
            clock=self._clock,
            precision=precision,
            lane=_TimedLane(self._clock, self.spent),
        )
        module.train()
        self._source, self._stream = self._rows_and_batches(sequencer)
        self._batches = iter(self._stream)
        self._forward_t = (0.0, 0.0)
        self.forget()

    def steps(self, count: int) -> None:
        """Train some steps."""
        for _ in range(count):
            item = next(self._batches, None)
            if item is None:
                raise DataError(
                    "profile: the training data have no rows left; give a job with more, or smaller batches"
                )
            spec, batch = item
            if len(self.batches) < _MOST_STEPS:
                self.batches.append((spec, batch))
            with self.spent.on("step"):
                self._tower.train_step(spec, batch, self._source)

    def forget(self) -> None:
        """What follows is measured."""
        self.spent.seconds.clear()
        self.spent.cpu_s.clear()
        self._before = self._clock.totals(), self._reader.spans(), self._client.traffic.to_dict()

    def points(self, steps: int) -> dict[str, Point]:
        """Of one step."""
        seconds, spent = self._seconds(steps), self.spent
        step_cpu_s, forward_cpu_s, building_cpu_s = (
            spent.cpu_s.get(name, 0.0) / steps for name in ("step", "forward", _BUILDING)
        )
        cpu_s = {**_cpu_shares(seconds, step_cpu_s - forward_cpu_s - building_cpu_s), "forward": forward_cpu_s}
        moved = {name: (n - self._before[2][name]) / steps for name, n in self._client.traffic.to_dict().items()}
        used = used_bytes(self.job, self.batches)
        bytes_ = {"lookup": moved["pulled"], "push": moved["pushed"], "gather": used, "return": used}
        beside = {
            name: Point(rows=self.job.batch_size, seconds=spent.seconds.get(name, 0.0) / steps)
            for name in ((BESIDE_GATHER, BESIDE_RETURN) if self.job.train.texts else ())
        }
        return beside | {
            name: Point(
                rows=self.job.batch_size,
                seconds=own,
                cpu_s=own if name == "dedup" else cpu_s[name],
                bytes=bytes_.get(name, 0.0),
            )
            for name, own in seconds.items()
        }

    def _seconds(self, steps: int) -> dict[str, float]:
        """Of each task in one step. Servers work inside the tower's spans, in the same thread: they are taken out."""
        spans, read, _ = self._before
        clock, reader, spent = self._clock.totals(), self._reader.spans(), self.spent

        def span(totals: SpanTotals, before: SpanTotals, *names: Span) -> float:
            return sum(totals.seconds.get(each, 0.0) - before.seconds.get(each, 0.0) for each in names) / steps

        lookup, push, forward = (spent.seconds.get(name, 0.0) / steps for name in ("lookup", "push", "forward"))
        in_pull, in_push = (lookup + push, 0.0) if self.job.window else (lookup, push)
        return {
            "dedup": span(reader, read, Span.KEYS_WINDOW),
            "lookup": lookup,
            "push": push,
            "gather": max(span(clock, spans, Span.ROWS_PULL, Span.WAIT_SERVER) - in_pull, 0.0),
            "forward": forward,
            "backward": max(span(clock, spans, Span.TOWER_STEP) - forward, 0.0),
            "return": max(span(clock, spans, Span.ROWS_PUSH) - in_push, 0.0),
            "optimizer": span(clock, spans, Span.GRADS_MERGE, Span.WAIT_TOWERS),
        }

    def _rows_and_batches(self, sequencer: Sequencer) -> tuple[RowSource, BatchStream]:
        if not self.job.window:
            return PulledRows(self._client, towers=1), InlineStream(self.job, sequencer, [self._reader])
        windows = InlineWindows(self.job, sequencer, [self._reader])
        built = _BuiltWindows(windows, clock=self._clock, spent=self.spent)
        leased = LeasedRows(self.job, client=self._client, group=SoleTower(), windows=built, clock=self._clock)
        return leased, windows

    def _time_forward(self, module: nn.Module) -> None:
        """Charge `forward` with the module's calls, and with reading texts where that comes before them."""
        read = getattr(module, "read", None)
        if read is not None:
            module.read = self._timed(read)  # type: ignore[assignment]
        module.register_forward_pre_hook(self._forward_begins)
        module.register_forward_hook(self._forward_ends)

    def _timed(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: object) -> object:
            with self.spent.on("forward"):
                return read(*arguments)

        return timed

    def _forward_begins(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        dense, embeddings = inputs
        self.inputs = dense, embeddings.cut(()) if embeddings.texts else embeddings
        self._forward_t = time.perf_counter(), time.process_time()

    def _forward_ends(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        seconds, cpu_s = time.perf_counter() - self._forward_t[0], time.process_time() - self._forward_t[1]
        self.spent.add("forward", seconds=seconds, cpu_s=cpu_s)


def _cpu_shares(seconds: Mapping[str, float], cpu_s: float) -> dict[str, float]:
    """CPU time of a step's tasks but the forward pass, which together had `cpu_s`.

    Each is one thread's work; what is more than all of their seconds is of the backward pass, which may have several.
    What is less was taken by others on the machine, or waited for, in equal proportion.
    """
    own = {name: value for name, value in seconds.items() if name not in ("dedup", "forward")}
    whole = max(sum(own.values()), 1e-12)
    shares = {name: value * min(1.0, max(cpu_s, 0.0) / whole) for name, value in own.items()}
    shares["backward"] += max(cpu_s - whole, 0.0)
    return shares
