"""What the nodes of a cluster have free for one run: all that no other run holds."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Any, cast

import ray

from actors.processes import live_nodes

_CREATED = "CREATED"


def placement_name(run: str) -> str:
    """A name for a placement group of a run, unlike any other; `room_of` knows it by."""
    return f"{run}/{secrets.token_hex(4)}"


def room_of(run: str) -> tuple[float, ...]:
    """CPUs of every node that is alive, which are free or held by this run. Ray's figures are up to a second old."""
    free = cast(Any, ray)._private.state.available_resources_per_node()
    own: Counter[str] = Counter()
    for group in cast(Any, ray).util.placement_group_table().values():
        if group["name"].rpartition("/")[0] == run and group["state"] == _CREATED:
            for bundle, node in group["bundles_to_node_id"].items():
                own[str(node)] += group["bundles"][bundle].get("CPU", 0.0)
    return tuple(min(cpus, free.get(node, {}).get("CPU", 0.0) + own[node]) for node, cpus in live_nodes().items())
