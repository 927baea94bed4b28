"""One actor on every node of a cluster: what the node is, and how fast bytes go to the others."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.context import WORKER_VARIABLES
from hetero.errors import UserError
from hetero.hardware.devices import Link
from hetero.hardware.probe import Machine, probe_machine
from hetero.hardware.rates import MachineRates, measure_rates
from hetero.parallel.group import CollectiveGroup, Rendezvous, free_rendezvous

_LARGE = 16 << 20
_OBJECT = 1 << 17
"""Above 100 KiB an answer goes through the object store, as rows do; below, Ray sends it with the call."""
_SMALL = 1 << 10
_REPEATS = 5
_CALLS = 20
_DEADLINE_S = 120.0
_MOST_PAIRS = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node as it was found. node: Ray's id of it."""

    node: str
    address: str
    labels: Mapping[str, str]
    resources: Mapping[str, float]
    machine: Machine
    rates: MachineRates | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLinks:
    """Between two nodes, by number: a call with its array through the object store, a sum by collectives."""

    first: int
    second: int
    store: Link
    collective: Link


class NodeProbe:
    """Looks at its node, and takes part in measuring links."""

    def machine(self) -> Machine:
        return probe_machine()

    def rates(self, disks: Sequence[str]) -> MachineRates:
        return measure_rates(disks=tuple(Path(folder) for folder in disks))

    def hand(self, size: int) -> Any:
        """An array that another node fetches."""
        return np.ones(size, np.uint8)

    def fetch(self, other: Any, size: int) -> float:
        """Seconds of a call to another's `hand`, with the array in this process's memory in the end."""
        times = []
        for _ in range(_CALLS if size == _OBJECT else _REPEATS):
            began = time.perf_counter()
            np.array(cast(Any, ray).get(other.hand.remote(size)))
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    def call_cpu_s(self, other: Any) -> float:
        """CPU time of this process, all threads, in a call as `fetch` makes them."""
        self.fetch(other, _OBJECT)
        began = time.process_time()
        self.fetch(other, _OBJECT)
        return (time.process_time() - began) / _CALLS

    def rendezvous(self) -> Rendezvous:
        return free_rendezvous(cast(Any, ray).util.get_node_ip_address())

    def sums(self, rendezvous: Rendezvous, rank: int, size: int) -> tuple[float, float, float]:
        """Seconds of a small and a large sum over a group of `size`; CPU time of this process, all threads, in a small
        one."""
        group = CollectiveGroup.meet(
            rendezvous, rank=rank, size=size, deadline_s=_DEADLINE_S, device=torch.device("cpu")
        )
        try:
            large_s = _sum_s(group, _LARGE // 4)
            began = time.process_time()
            small_s = _sum_s(group, _SMALL // 4)
            return small_s, large_s, (time.process_time() - began) / (1 + _CALLS)
        finally:
            group.close()


def _sum_s(group: CollectiveGroup, floats: int) -> float:
    values = torch.zeros(floats)
    times = []
    for _ in range(1 + _CALLS):
        began = time.perf_counter()
        group.sum_(values)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


@contextmanager
def probes(*, cpus: float = 0.0) -> Iterator[list[tuple[dict[str, Any], Any]]]:
    """Ray's record of every node that takes work, with an actor on it. Raises UserError for a cluster without any."""
    nodes = [node for node in cast(Any, ray).nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
    if not nodes:
        raise UserError("the cluster has no node with CPUs; add one")
    made = []
    try:
        for node in nodes:
            options: dict[str, Any] = {
                "num_cpus": cpus,
                "scheduling_strategy": NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
                "runtime_env": {"env_vars": dict(WORKER_VARIABLES)},
            }
            made.append((node, cast(Any, ray.remote(NodeProbe)).options(**options).remote()))
        yield made
    finally:
        for _, actor in made:
            with suppress(Exception):
                ray.kill(actor)


def look_at_nodes(made: Sequence[tuple[dict[str, Any], Any]], *, disks: Sequence[str], rates: bool) -> list[NodeFacts]:
    """Facts of every node; rates are measured one node after the other, as several may share a machine."""
    facts = []
    for node, actor in made:
        machine = _get(actor.machine.remote())
        measured = _get(actor.rates.remote(list(disks))) if rates else None
        facts.append(
            NodeFacts(
                node=node["NodeID"],
                address=node["NodeManagerAddress"],
                labels={name: value for name, value in node["Labels"].items() if not name.startswith("ray.io/node-id")},
                resources={k: v for k, v in node["Resources"].items() if not k.startswith("node:")},
                machine=machine,
                rates=measured,
            )
        )
    return facts


def links_between(made: Sequence[tuple[dict[str, Any], Any]]) -> list[PairLinks]:
    """Of every pair of nodes, or of each node and the next where that would be too many."""
    count = len(made)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    if len(pairs) > _MOST_PAIRS:
        pairs = [(i, (i + 1) % count) for i in range(count)]
    return [_pair(made, first, second) for first, second in pairs]


def _pair(made: Sequence[tuple[dict[str, Any], Any]], first: int, second: int) -> PairLinks:
    one, other = made[first][1], made[second][1]
    small, large = (_get(one.fetch.remote(other, size)) for size in (_OBJECT, _LARGE))
    store = _link("object store", small, large, least=_OBJECT)
    return PairLinks(first=first, second=second, store=store, collective=group_link([one, other]))


def group_link(actors: Sequence[Any]) -> Link:
    """Of a sum over all of them. bytes_per_s: what each sends, 2 (n - 1) / n of the values as in a ring."""
    times = _sums(actors)
    sent = 2 * (len(actors) - 1) / len(actors)
    return _link("collective", max(t[0] for t in times), max(t[1] for t in times), factor=sent)


def call_cpu_s(made: Sequence[tuple[dict[str, Any], Any]]) -> float:
    """CPU time of one end of a call between two nodes, with its array."""
    return float(_get(made[0][1].call_cpu_s.remote(made[1][1])))


def message_cpu_s(actors: Sequence[Any]) -> float:
    """CPU time of one member in a small sum over all of them."""
    return statistics.median(cpu_s for _, _, cpu_s in _sums(actors))


def _sums(actors: Sequence[Any]) -> list[tuple[float, float, float]]:
    """What each measures of sums over all of them."""
    meeting = _get(actors[0].rendezvous.remote())
    answers = [actor.sums.remote(meeting, rank, len(actors)) for rank, actor in enumerate(actors)]
    return cast(list[tuple[float, float, float]], _get(answers))


def _link(name: str, small_s: float, large_s: float, *, least: int = _SMALL, factor: float = 1.0) -> Link:
    """Alpha-beta from two messages, of `least` and of _LARGE bytes. factor: of a message's bytes that travel."""
    byte_s = max(large_s - small_s, 1e-9) / (_LARGE - least)
    latency_s = max(small_s - byte_s * least, 0.0)
    return Link(name=name, latency_s=latency_s, bytes_per_s=factor / byte_s, source="measured")


def _get(answer: Any) -> Any:
    return cast(Any, ray).get(answer, timeout=_DEADLINE_S)
