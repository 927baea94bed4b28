"""The cluster file: the one that `ray up` reads, whose node types also say what planning has to know.

    available_node_types:
      gpu:
        resources: {CPU: 8, GPU: 1, memory: 60000000000}
        labels: {role: gpu, hetero/price: "3.06", hetero/accelerator: v100-16gb, hetero/network: 10gbe}
        max_workers: 4

Facts are labels, so that they reach the nodes too: hetero/price (money an hour), hetero/network (a link of
hetero/hardware/devices.py, or measured GB/s), hetero/accelerator (a device of it; needed with GPU), hetero/ssd-gib.

Of machines that are there already (provider `local`) Ray knows one kind. Theirs stand in provider.node_types, with the
hosts of each (`hosts: [10.0.0.11]`) instead of max_workers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hetero.errors import JobError, PlanError
from hetero.hardware.devices import device, link
from hetero.records.cluster import ClusterSpec, NodeKind
from pipelines.job_yaml import read_yaml

PREFIX = "hetero/"
LOCAL = "local"
ON_PREMISE_TYPES = "node_types"
_FACTS = ("price", "network", "accelerator", "ssd-gib")


def load_cluster(path: Path) -> ClusterSpec:
    """Read the kinds of node that workers may be. Raises PlanError, which names the node type and what it lacks."""
    raw = read_cluster(path)
    head = head_type(raw)
    kinds = tuple(
        node_kind(path, name, node_type)
        for name, node_type in node_types(raw, path=path).items()
        if name != head or _most(path, name, node_type)
    )
    if not kinds:
        raise PlanError(f"{path}: no node type has max_workers above 0, so there is nothing to run a job on")
    return ClusterSpec(name=str(raw.get("cluster_name", path.stem)), kinds=kinds)


def read_cluster(path: Path) -> dict[str, Any]:
    """The file as it stands there. Raises PlanError when it cannot be read or is no mapping."""
    try:
        raw, _ = read_yaml(path, what="cluster file", example="cluster.yaml")
    except JobError as error:
        raise PlanError(str(error)) from None
    return {str(name): value for name, value in raw.items()}


def is_on_premise(raw: Mapping[str, Any]) -> bool:
    """Whether the machines are there already, reached by SSH."""
    provider = raw.get("provider")
    return isinstance(provider, dict) and provider.get("type") == LOCAL


def node_types(raw: Mapping[str, Any], *, path: Path) -> dict[str, dict[str, Any]]:
    """The file's node types by name, the head's among them. Raises PlanError when there are none."""
    place = f"provider.{ON_PREMISE_TYPES}" if is_on_premise(raw) else "available_node_types"
    types = raw["provider"].get(ON_PREMISE_TYPES) if is_on_premise(raw) else raw.get("available_node_types")
    if not isinstance(types, dict) or not types:
        raise PlanError(f"{path}: {place} is missing or empty; it lists the kinds of node")
    for name, node_type in types.items():
        if not isinstance(node_type, dict):
            raise PlanError(f"{path}: node type `{name}` is no mapping")
    return {str(name): node_type for name, node_type in types.items()}


def head_type(raw: Mapping[str, Any]) -> str | None:
    """The name of the head's node type; of machines that are there already, that of the head's address."""
    if not is_on_premise(raw):
        return None if raw.get("head_node_type") is None else str(raw["head_node_type"])
    types = raw["provider"].get(ON_PREMISE_TYPES) or {}
    head = raw["provider"].get("head_ip")
    return next((str(name) for name, one in types.items() if head in hosts_of(one)), None)


def hosts_of(node_type: Mapping[str, Any]) -> tuple[str, ...]:
    """Addresses of the machines of a kind that are there already."""
    return tuple(str(host) for host in node_type.get("hosts") or ())


def cluster_fingerprint(cluster: ClusterSpec) -> str:
    """Changes with anything that planning looks at."""
    return digest_of(asdict(cluster))


def cluster_kinds(cluster: ClusterSpec) -> dict[str, str]:
    """A fingerprint of each kind of node."""
    return {kind.name: digest_of(asdict(kind)) for kind in cluster.kinds}


def digest_of(record: object) -> str:
    """A short hash of what JSON can hold."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]


def _most(path: Path, name: str, node_type: Mapping[str, Any]) -> int:
    """Workers of a kind that there may be."""
    hosts = hosts_of(node_type)
    most = node_type.get("max_workers", len(hosts))
    if isinstance(most, bool) or not isinstance(most, int) or most < 0:
        raise PlanError(f"{path}: node type `{name}`: max_workers is `{most}`, it must be a whole number from 0 up")
    return min(most, len(hosts)) if hosts else most


def node_kind(path: Path, name: str, node_type: Mapping[str, Any]) -> NodeKind:
    """One node type's facts. Raises PlanError for what is missing or no number."""
    where = f"{path}: node type `{name}`"
    labels = {str(key): str(value) for key, value in (node_type.get("labels") or {}).items()}
    facts = _facts(where, labels)
    resources = {str(key): _number(where, key, value) for key, value in (node_type.get("resources") or {}).items()}
    if resources.get("CPU", 0) <= 0:
        raise PlanError(f"{where} has no resources.CPU; planning has to know its cores")
    if "memory" not in resources:
        raise PlanError(f"{where} has no resources.memory (bytes); planning has to know what rows may take")
    gpus = int(resources.get("GPU", 0))
    if gpus and "accelerator" not in facts:
        raise PlanError(f"{where} has GPU: {gpus} and no label {PREFIX}accelerator, such as v100-16gb")
    return NodeKind(
        name=name,
        count=_most(path, name, node_type),
        price=_number(where, PREFIX + "price", facts["price"]),
        cores=resources["CPU"],
        memory_bytes=int(resources["memory"]),
        ssd_bytes=int(_number(where, PREFIX + "ssd-gib", facts.get("ssd-gib", "0")) * (1 << 30)),
        network_bytes_per_s=_network(where, facts.get("network", "10gbe")),
        accelerator=device(facts["accelerator"]).name if gpus else "",
        accelerators=gpus,
        labels={k: v for k, v in labels.items() if not k.startswith(PREFIX) or k == PREFIX + "accelerator"},
        resources=resources,
    )


def _network(where: str, named: str) -> float:
    """Bytes a second of a link that is known by name, or of so many GB/s that were measured."""
    if not named.replace(".", "", 1).isdigit():
        return link(named).bytes_per_s
    return 1e9 * max(_number(where, PREFIX + "network", named), 1e-6)


def _facts(where: str, labels: Mapping[str, str]) -> dict[str, str]:
    facts = {key.removeprefix(PREFIX): value for key, value in labels.items() if key.startswith(PREFIX)}
    for fact in facts:
        if fact not in _FACTS:
            raise PlanError(f"{where}: there is no label {PREFIX}{fact}; known are {', '.join(_FACTS)}")
    if "price" not in facts:
        raise PlanError(f'{where} has no label {PREFIX}price (money an hour, as text: "0.77")')
    return facts


def _number(where: str, name: object, value: object) -> float:
    try:
        number = float(str(value))
    except ValueError:
        raise PlanError(f"{where}: {name} is `{value}`, it must be a number") from None
    if number < 0:
        raise PlanError(f"{where}: {name} is {number:g}, it must not be negative")
    return number
