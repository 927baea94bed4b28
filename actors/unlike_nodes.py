"""Nodes of several kinds on this machine: raylets with labels and resources, to try placements without a cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import ray
from ray.cluster_utils import Cluster

from actors.context import set_worker_variables
from actors.naming import NAMESPACE

_STORE_BYTES = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedNode:
    """What a raylet says it has."""

    cpus: int
    gpus: int = 0
    labels: dict[str, str] = field(default_factory=dict)


@contextmanager
def unlike_nodes(nodes: Sequence[EmulatedNode]) -> Iterator[str]:
    """The address of a cluster of these nodes and a head without CPUs, to which this process is connected meanwhile."""
    set_worker_variables()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's workers would yield to whatever else the machine runs
    head = {"num_cpus": 0, "object_store_memory": _STORE_BYTES, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    try:
        for node in nodes:
            more = {"num_gpus": node.gpus} if node.gpus else {}
            cluster.add_node(num_cpus=node.cpus, labels=node.labels, object_store_memory=_STORE_BYTES, **more)
        ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
        yield str(cluster.address)
    finally:
        ray.shutdown()
        cluster.shutdown()


def label_of_this_node(name: str) -> str | None:
    """A label of the node that this process is on; None without Ray or such a label."""
    if not ray.is_initialized():
        return None
    own = ray.get_runtime_context().get_node_id()
    nodes = cast(Any, ray).nodes()
    return next((node["Labels"].get(name) for node in nodes if node["NodeID"] == own), None)


def is_on_ray() -> bool:
    """Whether this process is one of Ray's, or connected to it."""
    return bool(ray.is_initialized())
