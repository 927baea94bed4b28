"""A cluster on this machine whose nodes an autoscaler starts: Ray's own, version 2, over its fake provider of nodes.

Nodes are raylets that say they have what their type in a cluster file has, memory left out, which the provider refuses.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.support.ray_jobs import RAY

HEAD_ID = "f" * 51 + "00000"
_HEAD_TYPE = "ray.head.default"
_PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
_EMPTY_LISTS = (
    "cluster_synced_files",
    "rsync_exclude",
    "rsync_filter",
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
)


@dataclass(frozen=True, kw_only=True)
class Autoscaled:
    """address: of the cluster."""

    address: str

    def launched(self) -> Counter[str]:
        """Nodes of each type that were ever there, the head left out."""
        import ray

        ray.init(address=self.address, log_to_driver=False)
        try:
            nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        finally:
            ray.shutdown()
        types = [node["Labels"].get("kind", "") for node in nodes if node["NodeID"] != HEAD_ID]
        return Counter(types)


@contextmanager
def autoscaled(cluster_file: Path, *, folder: Path) -> Iterator[Autoscaled]:
    """A head alone, and the node types of a cluster file for its autoscaler to start. folder: short, for sockets."""
    port = _free_port()
    config = folder / "autoscaling.json"
    config.write_text(json.dumps(_config(cluster_file, port=port)), encoding="utf-8")
    command = [str(RAY), "start", "--head", f"--port={port}", "--num-cpus=0", "--labels=kind=head", "--block"]
    command += ["--object-store-memory=100000000", f"--temp-dir={folder}", f"--autoscaling-config={config}"]
    environment = {
        **os.environ,
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
        "RAY_NODE_TYPE_NAME": _HEAD_TYPE,
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with (folder / "head.log").open("wb") as log:
        head = subprocess.Popen([*command, "--include-dashboard=false"], stdout=log, stderr=log, env=environment)
    try:
        _await_head(head, port, folder / "head.log")
        yield Autoscaled(address=f"127.0.0.1:{port}")
    finally:
        head.terminate()
        with suppress(subprocess.TimeoutExpired):
            head.wait(timeout=15)
        _end_all(folder)


def _config(cluster_file: Path, *, port: int) -> dict[str, Any]:
    raw = yaml.safe_load(cluster_file.read_text(encoding="utf-8"))
    head = raw["head_node_type"]
    types = {}
    for name, one in raw["available_node_types"].items():
        least = {"min_workers": one.get("min_workers", 0), "max_workers": one["max_workers"]}
        resources = {name: most for name, most in one["resources"].items() if name != "memory"}
        facts = {"node_config": {}, "resources": resources, "labels": one["labels"]}
        types[_HEAD_TYPE if name == head else name] = {**facts, **least}
    return {
        "cluster_name": raw["cluster_name"],
        "max_workers": raw["max_workers"],
        "idle_timeout_minutes": 10,
        "upscaling_speed": 10.0,
        "provider": {
            "type": "external",
            "module": _PROVIDER,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "launch_multiple": True,
            "head_node_id": HEAD_ID,
            "gcs_address": f"127.0.0.1:{port}",
        },
        "available_node_types": types,
        "head_node_type": _HEAD_TYPE,
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        **{name: [] for name in _EMPTY_LISTS},
    }


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _await_head(head: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline_t = time.monotonic() + 60
    while time.monotonic() < deadline_t and head.poll() is None:
        if "Ray runtime started" in log.read_text(encoding="utf-8"):
            return
        time.sleep(0.2)
    raise RuntimeError(f"no head came up: {log.read_text(encoding='utf-8')}")


def _end_all(folder: Path) -> None:
    """End every process that works in the cluster's own folder."""
    ours = [one for one in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(one.info["cmdline"] or ())]
    for process in ours:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(ours, timeout=10)
