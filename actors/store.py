"""The cluster's object store: how full it is, and what it had to spill to disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from ray._private import internal_api, state


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUse:
    """used_bytes: held now, on all nodes. spilled_bytes: written to disk since the cluster started."""

    used_bytes: int
    spilled_bytes: int


def store_use() -> StoreUse:
    """Ask the cluster; some 20 ms. There is no public call for it."""
    stats = cast(Any, internal_api).get_memory_info_reply(cast(Any, state).state).store_stats
    return StoreUse(used_bytes=int(stats.object_store_bytes_used), spilled_bytes=int(stats.spilled_bytes_total))
