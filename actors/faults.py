"""Faults to try a run with: a process killed or stopped, a node's raylet killed; and a cluster of this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, cast

import psutil
import ray
from ray.cluster_utils import Cluster

from actors.context import set_worker_variables
from actors.naming import NAMESPACE, Member, Role
from actors.processes import live_nodes
from hetero.errors import DeadlineError, PeerLostError

_LOG = logging.getLogger(__name__)
_ANSWER_S = 10.0
_NODE_S = 60.0
_LOOK_EVERY_S = 0.25
_STORE_BYTES = 100 << 20
_RAYLET = "raylet"
_TOKEN = "HETERO_DRILL"
# By default a node counts as dead after some 15 s without an answer.
_HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}


class Fault(Enum):
    """What is done to a role: its process is killed (SIGKILL) or stopped (SIGSTOP), or its node's raylet is killed."""

    KILL = "kill"
    STOP = "stop"
    RAYLET = "raylet"


class DrillCluster:
    """Ray with several nodes on this machine, to which this process is connected. cpus: of each node but the head,
    which has none, as this process would not outlive it. token: stands in the environment of all its processes."""

    def __init__(self, *, nodes: int, cpus: int, token: str) -> None:
        self._cpus = cpus
        self._token = token
        self._coming: list[threading.Thread] = []
        os.environ.update({_TOKEN: token, "RAY_USAGE_STATS_ENABLED": "0"})
        set_worker_variables()
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": _STORE_BYTES}
        # A node that comes later is started by a thread, where Ray may not set the signal handlers of its own end.
        arguments = {**head, "_system_config": _HEALTH}
        self._cluster = Cluster(initialize_head=True, head_node_args=arguments, shutdown_at_exit=False)
        self._nodes = 1 + nodes
        for _ in range(nodes):
            self.add_node()
        ray.init(address=self._cluster.address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)

    def add_node(self) -> None:
        """One node more."""
        cast(Any, self._cluster).add_node(num_cpus=self._cpus, object_store_memory=_STORE_BYTES)

    def replace_node(self) -> None:
        """One node more, soon: this returns at once."""

        def add() -> None:
            try:
                self.add_node()
            except Exception as error:
                _LOG.warning("no node came in place of the one that was lost: %s", error)

        coming = threading.Thread(target=add, daemon=True)
        coming.start()
        self._coming.append(coming)

    def await_nodes(self) -> None:
        """Wait until every node that was lost is replaced. Raises DeadlineError."""
        deadline_t = time.monotonic() + _NODE_S
        while (there := len(live_nodes())) < self._nodes:
            if time.monotonic() > deadline_t:
                raise DeadlineError(f"drill: {there} of {self._nodes} nodes are there after {_NODE_S:g} s")
            time.sleep(_LOOK_EVERY_S)

    def left_behind(self) -> list[str]:
        """Actors of runs that are still there, by pid and title."""
        return [title for title in self._titles() if "Actor" in title]

    def close(self) -> list[str]:
        """End it, once nodes that were to come are there. What could not be ended."""
        for coming in self._coming:
            coming.join(timeout=_NODE_S)
        ray.shutdown()
        cast(Any, self._cluster).shutdown()
        alive = [process for process in psutil.process_iter() if self._is_ours(process)]
        _, alive = psutil.wait_procs(alive, timeout=_ANSWER_S)
        return [f"{process.pid} {' '.join(process.cmdline())[:80]}" for process in alive]

    def _titles(self) -> Iterator[str]:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, IndexError):
                title = process.cmdline()[0]
                if title.startswith("ray::") and self._is_ours(process):
                    yield f"{process.pid} {title}"

    def _is_ours(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):
            return process.pid != os.getpid() and process.environ().get(_TOKEN) == self._token
        return False


@contextmanager
def drill_cluster(*, nodes: int, cpus: int, token: str) -> Iterator[DrillCluster]:
    """A cluster for the duration."""
    cluster = DrillCluster(nodes=nodes, cpus=cpus, token=token)
    try:
        yield cluster
    finally:
        cluster.close()


def inflict(fault: Fault, *, run: str, role: Role, index: int, cluster: DrillCluster) -> int:
    """Do it to one role of a run on this machine; the number of the process. A node that is lost is replaced by and by.

    Raises PeerLostError when the role is not there.
    """
    member = Member(run, role, index)
    try:
        handle: Any = ray.get_actor(str(member), namespace=NAMESPACE)
        pid = int(cast(Any, ray).get(handle.ping.remote(), timeout=_ANSWER_S))
    except Exception as error:
        raise PeerLostError(f"{member}: is not there to be hit ({error})", role=member.short) from error
    if fault is not Fault.RAYLET:
        os.kill(pid, signal.SIGKILL if fault is Fault.KILL else signal.SIGSTOP)
        return pid
    raylet = psutil.Process(pid).parent()
    if raylet is None or raylet.name() != _RAYLET:
        raise PeerLostError(f"{member}: process {pid} is no child of a raylet of this machine", role=member.short)
    raylet.kill()
    cluster.replace_node()
    return raylet.pid
