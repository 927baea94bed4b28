"""`hetero cluster flags`: how a machine that is there already starts as a node: the file's facts about it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from hetero.errors import PlanError
from pipelines.cluster_file import hosts_of, is_on_premise, node_types, read_cluster

_FLAGS = {"CPU": "--num-cpus", "GPU": "--num-gpus", "memory": "--memory"}


def own_addresses() -> frozenset[str]:
    """IPv4 addresses of this machine's interfaces."""
    interfaces = psutil.net_if_addrs().values()
    return frozenset(one.address for interface in interfaces for one in interface if one.family == socket.AF_INET)


def node_flags(path: Path, *, addresses: Iterable[str]) -> str:
    """Flags of `ray start` for the machine with these addresses, without a space inside any of them.

    Raises PlanError when the file is not about machines that are there already, or this is none of them.
    """
    raw = read_cluster(path)
    if not is_on_premise(raw):
        raise PlanError(
            f"{path}: provider.type is not `local`; other providers hand resources and labels out themselves"
        )
    own = frozenset(addresses)
    types = node_types(raw, path=path)
    for node_type in types.values():
        for host in hosts_of(node_type):
            address = _address_of(host)
            if address in own:
                return _flags(node_type, address)
    listed = ", ".join(host for node_type in types.values() for host in hosts_of(node_type))
    raise PlanError(f"{path}: this machine ({', '.join(sorted(own))}) is none of the hosts {listed}")


def _address_of(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise PlanError(f"host {host} of the cluster file has no address ({error}); write its IP address") from None


def _flags(node_type: Mapping[str, Any], address: str) -> str:
    resources = dict(node_type.get("resources") or {})
    words = [f"--node-ip-address={address}", f"--num-gpus={int(resources.pop('GPU', 0))}"]
    words += [f"{flag}={int(resources.pop(name))}" for name, flag in _FLAGS.items() if name in resources]
    if resources:
        words.append("--resources=" + json.dumps(resources, separators=(",", ":")))
    labels = node_type.get("labels") or {}
    if labels:
        words.append("--labels=" + ",".join(f"{name}={value}" for name, value in labels.items()))
    return " ".join(words)
