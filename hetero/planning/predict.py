"""What a placement of roles on kinds of node reaches, from a profile that was taken one task at a time. Pure.

A step ends when the slowest tower has done its share and all have met; a tower that reads texts does so while rows come
and go. Readers, sequencer and servers work ahead of it
or behind it, so the run is as fast as the slowest of them. Towers wait for servers only where they pull every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetero.hardware.devices import Link
from hetero.planning.task_profile import (
    READER_TASKS,
    ROUTING_TASKS,
    SEQUENCER_TASKS,
    SERVER_TASKS,
    TOWER_TASKS,
    JobProfile,
)

_ROUNDS = 30
_BATCHES_A_CALL = 4
"""That a tower asks a reader for at once."""
LOCAL = Link(name="object store", latency_s=2e-3, bytes_per_s=1e9, source="a call and its arrays, assumed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Kinds of node by role. batch: rows of a step over all towers. window: steps, 0 pulls and pushes every step.

    shares: of the batch, by tower; None for those with which towers end together. calls: a call from a tower to a
    server and back with its arrays; group: a message of a collective. dense_bytes: of the gradients that towers sum.
    groups: of tables, whose rows towers swap one group at a time.
    machine_cores: CPUs that all nodes share, where they are on one machine; 0 for nodes of their own. There it counts
    what calls and collectives cost besides, call_cpu_s at each end of a call and message_cpu_s in each tower.
    """

    readers: Sequence[str]
    servers: Sequence[str]
    towers: Sequence[str]
    batch: int
    window: int = 0
    shares: Sequence[float] | None = None
    calls: Link = LOCAL
    group: Link = LOCAL
    dense_bytes: float = 0.0
    groups: int = 1
    machine_cores: float = 0.0
    call_cpu_s: float = 0.0
    message_cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """samples_per_s: of the run. bound_by: which role it waits for. rates: what each role would reach alone. shares: of
    the batch, by tower. step_s: of the towers together."""

    samples_per_s: float
    bound_by: str
    rates: Mapping[str, float]
    shares: tuple[float, ...]
    step_s: float


def predict(profile: JobProfile, configuration: Configuration) -> Prediction:
    """Raises PlanError for a kind of node that was not measured."""
    shares = tuple(configuration.shares or _together(profile, configuration))
    batch = configuration.batch
    step_s = max(
        _tower_s(profile, kind, share * batch, configuration)
        for kind, share in zip(configuration.towers, shares, strict=True)
    ) + _meeting_s(profile, configuration, shares)
    step_s += _crowding_s(profile, configuration, shares, step_s=step_s)
    rates = {
        "towers": batch / step_s,
        "readers": sum(_rate(profile, kind, READER_TASKS, batch) for kind in configuration.readers),
        "sequencer": _rate(profile, configuration.readers[0], SEQUENCER_TASKS, batch) if configuration.window else 0.0,
        "leases": batch / _leasing_s(profile, configuration) if configuration.window else 0.0,
        "servers": sum(_rate(profile, kind, SERVER_TASKS, batch) for kind in configuration.servers),
        "cores": _machine_rate(profile, configuration, shares),
    }
    rates = {name: rate for name, rate in rates.items() if rate > 0}
    slowest = min(rates, key=rates.__getitem__)
    return Prediction(samples_per_s=rates[slowest], bound_by=slowest, rates=rates, shares=shares, step_s=step_s)


def _rate(profile: JobProfile, kind: str, names: Sequence[str], rows: float) -> float:
    seconds = profile.of(kind).seconds(names, rows)
    return rows / seconds if seconds > 0 else 0.0


def _tower_s(profile: JobProfile, kind: str, rows: float, configuration: Configuration) -> float:
    """Of a step with so many rows, without meeting others."""
    node = profile.of(kind)
    routing_s = node.seconds(ROUTING_TASKS, rows) if len(configuration.servers) > 1 else 0.0
    is_alone = len(configuration.towers) == 1
    if configuration.window:  # several towers swap leased rows, which the step's thread does
        return node.tower_s(rows, pull_s=routing_s, is_apart=is_alone)
    servers, calls = [profile.of(each) for each in configuration.servers], configuration.calls

    def waited_s(task: str) -> float:  # all towers ask at once, and the last one answered waits for the others
        of_servers = max(server.seconds((task,), configuration.batch) for server in servers) / len(servers)
        return of_servers + calls.latency_s + node.bytes(task, rows) / calls.bytes_per_s

    lookup, push = SERVER_TASKS
    return node.tower_s(rows, pull_s=routing_s + waited_s(lookup), push_s=waited_s(push), is_alone=is_alone)


def _leasing_s(profile: JobProfile, configuration: Configuration) -> float:
    """A step's share of giving back a window's rows and fetching the next one's, which follow each other while the
    window between them is trained: two calls a window, and what every tower's share of the rows takes to move."""
    server, calls, batch = profile.of(configuration.servers[0]), configuration.calls, configuration.batch
    moved = server.bytes("lookup", batch) + server.bytes("push", batch)
    towers = len(configuration.towers)
    return 2 * calls.latency_s / configuration.window + moved / towers / calls.bytes_per_s


def _meeting_s(profile: JobProfile, configuration: Configuration, shares: Sequence[float]) -> float:
    """The sum of dense gradients; and of leased rows what all towers swap: weights and gradients of those that others
    own."""
    towers, group = len(configuration.towers), configuration.group
    if towers == 1:
        return 0.0
    moved = 2 * (towers - 1) / towers * configuration.dense_bytes
    if configuration.window:
        used = max(
            sum(profile.of(kind).bytes(name, share * configuration.batch) for name in ("gather", "return"))
            for kind, share in zip(configuration.towers, shares, strict=True)
        )
        moved += (towers - 1) / towers * used
    return _messages(configuration) * group.latency_s + moved / group.bytes_per_s


def _messages(configuration: Configuration) -> int:
    """Collectives of a step."""
    if len(configuration.towers) == 1:
        return 0
    return 1 + (2 * configuration.groups if configuration.window else 0)


def _calls(configuration: Configuration) -> float:
    """Of a tower in a step: for its turn, for batches, for rows and with what comes back."""
    return 1 + 1 / _BATCHES_A_CALL + 2 / max(configuration.window, 1)


def _together(profile: JobProfile, configuration: Configuration) -> list[float]:
    """Shares with which all towers end a step together, by halving the step's length."""
    batch, kinds = float(configuration.batch), configuration.towers

    def rows_within(seconds: float) -> list[float]:
        rows = {kind: _rows_within(profile, kind, seconds, configuration) for kind in set(kinds)}
        return [rows[kind] for kind in kinds]

    low, high = 0.0, max(_tower_s(profile, kind, batch, configuration) for kind in kinds)
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(rows_within(middle)) >= batch else (middle, high)
    rows = rows_within(high)
    return [each / sum(rows) for each in rows]


def _rows_within(profile: JobProfile, kind: str, seconds: float, configuration: Configuration) -> float:
    """The most rows of a batch that a tower trains in so many seconds; one at least."""
    low, high = 1.0, float(configuration.batch)
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        fits = _tower_s(profile, kind, middle, configuration) <= seconds
        low, high = (middle, high) if fits else (low, middle)
    return low


def _machine_rate(profile: JobProfile, configuration: Configuration, shares: Sequence[float]) -> float:
    """Of nodes that share one machine's cores: CPU time of all tasks together. 0 for nodes of their own."""
    if not configuration.machine_cores:
        return 0.0
    cpu_s = _cpu_before_towers_s(profile, configuration) + sum(_towers_cpu_s(profile, configuration, shares))
    return configuration.machine_cores * configuration.batch / cpu_s if cpu_s > 0 else 0.0


def _crowding_s(profile: JobProfile, configuration: Configuration, shares: Sequence[float], *, step_s: float) -> float:
    """What a step takes longer where towers share one machine's cores: they begin it together and wait for devices at
    the same time, so they compute at the same time too, on the cores that the other roles leave them."""
    if not configuration.machine_cores:
        return 0.0
    towers_s, before_s = _towers_cpu_s(profile, configuration, shares), _cpu_before_towers_s(profile, configuration)
    crowding_s = 0.0
    for _ in range(_ROUNDS):
        left = max(configuration.machine_cores - before_s / (step_s + crowding_s), 0.1)
        crowding_s = max(0.0, sum(towers_s) / left - max(towers_s))
    return crowding_s


def _cpu_before_towers_s(profile: JobProfile, configuration: Configuration) -> float:
    """CPU time of a step in readers, sequencer and servers."""
    batch = configuration.batch
    cpu_s = profile.of(configuration.readers[0]).cpu_s((*READER_TASKS, *SEQUENCER_TASKS), batch)
    answered = len(configuration.towers) * _calls(configuration) * configuration.call_cpu_s
    return cpu_s + profile.of(configuration.servers[0]).cpu_s(SERVER_TASKS, batch) + answered


def _towers_cpu_s(profile: JobProfile, configuration: Configuration, shares: Sequence[float]) -> list[float]:
    """CPU time of a step in each tower."""
    asked = _calls(configuration) * configuration.call_cpu_s + _messages(configuration) * configuration.message_cpu_s
    return [
        asked + profile.of(kind).cpu_s(TOWER_TASKS, share * configuration.batch)
        for kind, share in zip(configuration.towers, shares, strict=True)
    ]
