"""What several kinds of groups do with their actors' places."""

from __future__ import annotations

import contextlib
from collections.abc import MutableMapping
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group

from actors.naming import Member


def end_actors(members: MutableMapping[Member, Any], placement: PlacementGroup | None) -> None:
    """Kill actors, forget them and free their bundles. Never raises: it runs after failures too."""
    for handle in members.values():
        with contextlib.suppress(Exception):
            ray.kill(handle, no_restart=True)
    members.clear()
    if placement is not None:
        with contextlib.suppress(Exception):
            remove_placement_group(placement)
