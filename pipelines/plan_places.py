"""From the stages of a plan to what a run needs: roles and threads, nodes to find, shares, budgets, a prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hetero.errors import PlanError
from hetero.hardware.devices import Link
from hetero.planning.plan import Plan, PlannedStage
from hetero.planning.predict import Configuration, Prediction, predict
from hetero.planning.profile import POOLED_ON_SERVER
from hetero.planning.task_profile import JobProfile
from hetero.planning.tasks import Chain, Role
from hetero.records import AUTO_WINDOW, JobSpec
from hetero.records.cluster import ClusterSpec, NodeKind
from hetero.towers.build import make_tower
from pipelines.plan_file import RoleCount

_SHARE_OF_MEMORY = 0.8
"""Of a node's memory for rows that is given to servers; the rest is for their processes."""
_SHARE_OF_WINDOW = 0.25
_LEAST_WINDOW = 1 << 20
_STEPS = 8
"""Of a window that is found while training; profiles take as many."""
_CALL_S = 2e-3
"""A call from a tower to a server and back, assumed; 0.3 to 1 ms a call were measured on one machine."""
_MESSAGE_S = 1e-3
"""A message of a collective among several processes, assumed."""


def role_counts(plan: Plan, *, chain: Chain, cluster: ClusterSpec) -> dict[str, RoleCount]:
    """Actors of each role: one on every node of its stages, towers one for each accelerator.

    Threads: the cores of a node, shared out by the seconds that its roles take; of towers on two kinds, the first's.
    """
    counts = {}
    for role in Role:
        stages = [stage for stage in plan.stages if role in stage.roles]
        actors = sum(stage.nodes * _actors(cluster.kind(stage.kind), role) for stage in stages)
        counts[f"{role.value}s"] = RoleCount(count=actors, threads=_threads(stages[0], role, chain, cluster))
    return counts


def _actors(kind: NodeKind, role: Role) -> int:
    """On one node."""
    return kind.accelerators if role is Role.TOWER and kind.accelerators else 1


def _threads(stage: PlannedStage, role: Role, chain: Chain, cluster: ClusterSpec) -> int:
    kind = cluster.kind(stage.kind)
    return max(1, math.floor(kind.cores * _share(chain, stage, kind, role) / _actors(kind, role)))


def _share(chain: Chain, stage: PlannedStage, kind: NodeKind, role: Role) -> float:
    tasks = [task for task in chain.tasks if task.name in stage.tasks]
    seconds = {task.name: task.usage[kind.name].cpu_s for task in tasks}
    whole = sum(seconds.values())
    own = sum(seconds[task.name] for task in tasks if task.role is role)
    return own / whole if whole else 1 / len(stage.roles)


def nodes_of(plan: Plan, *, chain: Chain, cluster: ClusterSpec) -> tuple[dict[str, object], ...]:
    """`roles.nodes` of the job: every node of the plan, whole. Raises PlanError where labels tell no kinds apart."""
    nodes = []
    for stage in plan.stages:
        kind = cluster.kind(stage.kind)
        _check_labels(kind, cluster)
        own = {name: amount for name, amount in kind.resources.items() if name != "memory" and amount > 0}
        if Role.TOWER not in stage.roles:
            own.pop("GPU", None)
        node: dict[str, object] = {
            "count": stage.nodes,
            "labels": dict(kind.labels),
            "resources": {**own, "CPU": kind.cores},
            **{f"{role.value}s": _actors(kind, role) for role in stage.roles},
        }
        if Role.TOWER in stage.roles:
            node["tower_threads"] = _threads(stage, Role.TOWER, chain, cluster)
        nodes.append(node)
    return tuple(nodes)


def _check_labels(kind: NodeKind, cluster: ClusterSpec) -> None:
    for other in cluster.kinds:
        if other.name != kind.name and kind.labels.items() <= other.labels.items():
            raise PlanError(
                f"nodes of `{other.name}` have all labels of `{kind.name}` ({dict(kind.labels)}), so nothing says "
                f"where a role for `{kind.name}` belongs; give `{kind.name}` a label of its own in the cluster file"
            )


def towers_by_kind(plan: Plan, cluster: ClusterSpec) -> list[str]:
    """The kind of node of every tower."""
    return [
        stage.kind
        for stage in plan.stages
        if Role.TOWER in stage.roles
        for _ in range(stage.nodes * _actors(cluster.kind(stage.kind), Role.TOWER))
    ]


def shares_of(plan: Plan, cluster: ClusterSpec, prediction: Prediction | None) -> tuple[float, ...]:
    """Shares of the batch, in the order of towers; empty where all are on nodes of one kind."""
    kinds = towers_by_kind(plan, cluster)
    if len(set(kinds)) == 1:
        return ()
    if prediction is not None:
        return tuple(round(share, 6) for share in prediction.shares)
    speeds = [
        stage.throughput / (stage.nodes * _actors(cluster.kind(stage.kind), Role.TOWER))
        for stage in plan.stages
        if Role.TOWER in stage.roles
        for _ in range(stage.nodes * _actors(cluster.kind(stage.kind), Role.TOWER))
    ]
    return tuple(round(speed / sum(speeds), 6) for speed in speeds)


def predicted(plan: Plan, *, spec: JobSpec, cluster: ClusterSpec, profile: JobProfile | None) -> Prediction | None:
    """What the planned run reaches, from measured tasks; None where a kind of node was not measured."""
    if profile is None or {stage.kind for stage in plan.stages} - {node.kind for node in profile.nodes}:
        return None
    slowest = min(cluster.kind(stage.kind).network_bytes_per_s for stage in plan.stages)
    return predict(
        profile,
        Configuration(
            readers=_kinds(plan, Role.READER),
            servers=_kinds(plan, Role.SERVER),
            towers=towers_by_kind(plan, cluster),
            batch=spec.batch_size,
            window=_window(plan, spec),
            calls=Link(name="call", latency_s=_CALL_S, bytes_per_s=slowest),
            group=Link(name="collective", latency_s=_MESSAGE_S, bytes_per_s=slowest),
            dense_bytes=4.0 * sum(p.numel() for p in make_tower(spec).parameters()),
            groups=len(spec.groups),
        ),
    )


def _window(plan: Plan, spec: JobSpec) -> int:
    if plan.chain == POOLED_ON_SERVER:
        return 0
    return _STEPS if spec.window == AUTO_WINDOW else spec.window


def _kinds(plan: Plan, role: Role) -> list[str]:
    return [stage.kind for stage in plan.stages if role in stage.roles for _ in range(stage.nodes)]


def window_bytes(plan: Plan, *, spec: JobSpec, cluster: ClusterSpec) -> int:
    """The most that a tower's leased rows take: the job's limit, or a part of the smallest node's memory."""
    rooms = [
        cluster.kind(stage.kind).memory_bytes * _SHARE_OF_WINDOW / _actors(cluster.kind(stage.kind), Role.TOWER)
        for stage in plan.stages
        if Role.TOWER in stage.roles
    ]
    return max(_LEAST_WINDOW, min(spec.window_bytes, int(min(rooms))))


def server_budgets(plan: Plan, *, spec: JobSpec, cluster: ClusterSpec) -> tuple[int, int] | None:
    """(memory, SSD) bytes of one server, for a job that has rows on SSD and a cluster that says how much there is."""
    if spec.storage is None:
        return None
    kinds: Sequence[NodeKind] = [cluster.kind(name) for name in _kinds(plan, Role.SERVER)]
    ssd = min(kind.ssd_bytes for kind in kinds)
    memory = int(_SHARE_OF_MEMORY * min(kind.memory_bytes for kind in kinds))
    return (memory, ssd) if ssd >= _LEAST_WINDOW else None
