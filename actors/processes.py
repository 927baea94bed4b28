"""Processes of actors: where they run, and ending one for certain, whatever state it is in."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psutil
import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_END_S = 10.0
_LOOK_EVERY_S = 0.05
_AHEAD_NICENESS = 5
"""A third of another process's share of a core, where both want it."""
_MOST_NICENESS = 19
_TITLE = "ray::"  # Ray names its workers by what they run
_CLASS = "Actor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process of an actor. node: Ray's id of the node it is on."""

    pid: int
    node: str


def work_ahead() -> None:
    """Let this process yield to those on its machine that are waited for.

    Readers and the sequencer work ahead of the towers. Where they share cores with one, the tower's step would be held
    up by work that nobody waits for yet; when the tower waits for them it leaves its core to them.
    """
    niceness = min(os.getpriority(os.PRIO_PROCESS, 0) + _AHEAD_NICENESS, _MOST_NICENESS)
    threads = Path("/proc/self/task")  # on Linux a thread has a priority of its own
    for thread in [int(each.name) for each in threads.iterdir()] if threads.is_dir() else [0]:
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.setpriority(os.PRIO_PROCESS, thread, niceness)


def live_nodes() -> dict[str, float]:
    """CPUs of every node of the cluster that is alive, by its id."""
    nodes = cast(Any, ray).nodes()
    return {node["NodeID"]: float(node["Resources"].get("CPU", 0.0)) for node in nodes if node["Alive"]}


def node_names() -> dict[str, str]:
    """Address and labels of every node, Ray's own labels left out, by its id."""
    names = {}
    for node in cast(Any, ray).nodes():
        own = [f"{name}={value}" for name, value in node["Labels"].items() if not name.startswith("ray.io/")]
        names[node["NodeID"]] = " ".join([node["NodeManagerAddress"], *sorted(own)])
    return names


def nodes_of(placement: PlacementGroup) -> dict[int, str]:
    """The node of every bundle."""
    table = cast(Any, ray).util.placement_group_table(placement)
    return {int(bundle): str(node) for bundle, node in table["bundles_to_node_id"].items()}


def end_process(process: Process) -> None:
    """Kill an actor's process with SIGKILL, which reaches a stopped one too, and wait until it is gone.

    Does nothing where its node is gone. Raises nothing: Ray's own end of the actor comes besides.
    """
    with contextlib.suppress(Exception):
        if process.node not in live_nodes():
            return
        if process.node == ray.get_runtime_context().get_node_id():
            kill_worker(process.pid)
            return
        there = NodeAffinitySchedulingStrategy(process.node, soft=False)
        task = cast(Any, ray.remote(kill_worker)).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
        ray.get(task.remote(process.pid), timeout=_END_S)


def end_here(processes: Iterable[Process]) -> None:
    """End those that are on this machine, of nodes that are gone too: actors live on for a while when their raylet was
    killed. Of other machines Ray takes care. Raises nothing."""
    with contextlib.suppress(Exception):
        here = cast(Any, ray).util.get_node_ip_address()
        nodes = {node["NodeID"] for node in cast(Any, ray).nodes() if node["NodeManagerAddress"] == here}
        for process in processes:
            if process.node in nodes:
                kill_worker(process.pid)


def kill_worker(pid: int) -> None:
    """Kill an actor of this machine and wait until it is gone; another process that has its number stays."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if not _is_worker(process):
            return
        os.kill(pid, signal.SIGKILL)
        deadline_t = time.monotonic() + _END_S
        while _is_worker(process) and time.monotonic() < deadline_t:
            time.sleep(_LOOK_EVERY_S)


def _is_worker(process: psutil.Process) -> bool:
    if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
        return False
    title = (process.cmdline() or [""])[0]
    return title.startswith(_TITLE) and _CLASS in title
