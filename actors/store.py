"""The cluster's object store: how full it is, and what it had to spill to disk."""

from __future__ import annotations

import logging
from typing import Any, cast

import ray
from ray._private import internal_api, state

_LOG = logging.getLogger(__name__)
_ANSWER_S = 10


def store_used_bytes() -> int:
    """Bytes that objects hold now, on all nodes, as the nodes last reported them. Never waits for an actor."""
    resources = cast(Any, ray)
    total = resources.cluster_resources().get("object_store_memory", 0.0)
    return int(total - resources.available_resources().get("object_store_memory", 0.0))


def store_spilled_bytes() -> int | None:
    """Bytes written to disk since the cluster started; None, with a warning in the log, when nodes do not answer.

    Every process of the cluster is asked, so this is for moments at which all of them live: one that is stopped holds
    the answer up. There is no public call for it.
    """
    try:
        reply = cast(Any, internal_api).get_memory_info_reply(cast(Any, state).state, timeout_seconds=_ANSWER_S)
    except Exception as error:  # of gRPC, whose types Ray does not export
        _LOG.warning("the object store's spilling is not known: %s", error)
        return None
    return int(reply.store_stats.spilled_bytes_total)
