"""What a run reserves on a cluster: bundles of resources, and which actors share each.

Where the job names nodes, a bundle is what it takes of one of them, found by labels, and the roles of that node share
it. Otherwise every actor has a bundle of its own, anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from actors.naming import Role
from hetero.records import JobSpec, NodePlace

_SEQUENCER_CPUS = 0.1
_SHARE = 1e-4  # Ray counts resources in ten-thousandths

Number = tuple[Role, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Resources on one node that has the labels. members: role and number of each actor in it, and what it asks for."""

    resources: Mapping[str, float]
    labels: Mapping[str, str]
    members: Mapping[Number, Mapping[str, float]]


def server_resources(job: JobSpec) -> dict[str, float]:
    """Resources of one server that is anywhere."""
    return {"CPU": 0.5 * job.servers.threads}


def server_labels(job: JobSpec) -> dict[str, str]:
    """Labels of the nodes that further servers go to: those of the last node that the job has servers on."""
    return dict(next((node.labels for node in reversed(job.nodes) if node.servers), {}))


def cpus_needed(job: JobSpec) -> float:
    """CPUs the run's actors ask Ray for, in cores; with the most servers that its schedule names."""
    more = max((at.count for at in job.server_schedule), default=0) - job.servers.count
    reserved = sum(bundle.resources["CPU"] for bundle in bundles_of(job))
    return reserved + max(0, more) * server_resources(job)["CPU"]


def bundles_of(job: JobSpec) -> list[Bundle]:
    """The run's bundles; every actor is in one."""
    if job.nodes:
        return _on_nodes(job)
    gpu = {"GPU": 1.0} if job.device == "cuda" else {}
    return [_alone(number, cpus, gpu if number[0] is Role.TOWER else {}) for number, cpus in _cpus(job).items()]


def _cpus(job: JobSpec) -> dict[Number, float]:
    """CPUs of every actor, in the order sequencer, readers, servers, towers, ranks of a text half.

    A tower computes all the time and asks for its threads; readers and servers are mostly idle beside it (design,
    section 5) and ask for half of theirs.
    """
    return {
        (Role.SEQUENCER, 0): _SEQUENCER_CPUS,
        **{(Role.READER, index): 0.5 * job.readers.threads for index in range(job.readers.count)},
        **{(Role.SERVER, index): server_resources(job)["CPU"] for index in range(job.servers.count)},
        **{(Role.TOWER, index): float(job.threads_of_tower(index)) for index in range(job.towers.count)},
        **{(Role.RANK, index): float(job.towers.threads) for index in range(followers_of(job))},
    }


def followers_of(job: JobSpec) -> int:
    """Ranks of a text half on a mesh beside the towers, which lead its data ways."""
    return 0 if job.tower.mesh is None else job.tower.mesh.ranks - job.towers.count


def _alone(number: Number, cpus: float, devices: Mapping[str, float]) -> Bundle:
    resources = {"CPU": cpus, **devices}
    return Bundle(resources=resources, labels={}, members={number: resources})


def _on_nodes(job: JobSpec) -> list[Bundle]:
    """Actors take their numbers node by node; the sequencer is beside the first reader, whom it talks to most."""
    cpus, following = _cpus(job), dict.fromkeys((Role.READER, Role.SERVER, Role.TOWER), 0)
    bundles = []
    for node in job.nodes:
        numbers: list[Number] = []
        for role, count in ((Role.READER, node.readers), (Role.SERVER, node.servers), (Role.TOWER, node.towers)):
            if role is Role.READER and count and following[role] == 0:
                numbers.append((Role.SEQUENCER, 0))
            numbers += [(role, following[role] + n) for n in range(count)]
            following[role] += count
        bundles.append(_shared(node, numbers, cpus))
    return bundles


def _shared(node: NodePlace, numbers: Sequence[Number], cpus: Mapping[Number, float]) -> Bundle:
    """The node's CPUs by what its actors would ask for, its devices by towers; other resources stay with the bundle."""
    resources = {"CPU": sum(cpus[number] for number in numbers), **node.resources}
    factor = min(1.0, resources["CPU"] / max(sum(cpus[number] for number in numbers), _SHARE))
    members = {number: {"CPU": _floor(cpus[number] * factor)} for number in numbers}
    if resources.get("GPU"):
        for number in numbers:
            if number[0] is Role.TOWER:
                members[number]["GPU"] = _floor(resources["GPU"] / node.towers)
    return Bundle(resources=resources, labels=node.labels, members=members)


def _floor(amount: float) -> float:
    return math.floor(amount / _SHARE + 1e-6) * _SHARE
