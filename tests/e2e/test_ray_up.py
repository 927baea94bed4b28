"""`ray up` of the on-premise file on separate hosts over SSH: nodes join, a submitted job trains across them, all ends.

Needs root, for the hosts; see tests/support/hosts.py.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.cli import hetero, write_job
from tests.support.hosts import Hosts, hosts, missing
from tests.support.jobs import write_data

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
WHY_NOT = missing()
ADDRESSES = {"client": "10.99.0.1", "head": "10.99.0.10", "cpu": "10.99.0.11", "gpu": "10.99.0.12"}
JOIN_S = 90.0
END_S = 180.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""),
]


@dataclass(frozen=True)
class Site:
    """Hosts, and the folder that all of them share: cluster file, data, jobs, runs."""

    hosts: Hosts
    folder: Path

    def client(self, command: str, *, deadline_s: float = 120.0) -> str:
        """What a command typed at the client says; it must succeed."""
        ran = self.hosts.run("client", "bash", "-c", self.typed(command), deadline_s=deadline_s, variables=ENVIRONMENT)
        assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout + ran.stderr

    def typed(self, command: str) -> str:
        return f"cd {shlex.quote(str(self.folder))} && {command}"

    def dashboard(self, path: str) -> Any:
        """JSON of the dashboard through the tunnel, or None while there is none."""
        url = f"http://127.0.0.1:8265{path}"
        read = f"import urllib.request as u; print(u.urlopen({url!r}, timeout=10).read().decode())"
        ran = self.hosts.run("client", sys.executable, "-c", read, deadline_s=20)
        return json.loads(ran.stdout) if ran.returncode == 0 else None

    def nodes(self) -> list[dict[str, Any]]:
        """Nodes of the cluster that are alive."""
        answer = self.dashboard("/api/v0/nodes?detail=1")
        found = [] if answer is None else answer["data"]["result"]["result"]
        return [node for node in found if node["state"] == "ALIVE"]


ENVIRONMENT = {
    "PATH": f"{BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONPATH": str(ROOT),
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_UP_enable_autoscaler_v2": "0",
    "RAY_API_SERVER_ADDRESS": "http://127.0.0.1:8265",
}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    own = Path(tempfile.mkdtemp(prefix="hosts-", dir="/run"))
    try:
        with hosts(ADDRESSES, folder=own, shared=[ROOT, tmp_path]) as found:
            write_cluster(tmp_path)
            yield Site(found, tmp_path)
    finally:
        shutil.rmtree(own, ignore_errors=True)


def write_cluster(folder: Path) -> None:
    """The file that ships, with this site's user, key and folders."""
    text = (ROOT / "cluster-on-premise.yaml").read_text(encoding="utf-8")
    for change, into in {
        "ssh_user: hetero": "ssh_user: root",
        "PATH=/opt/hetero/env/bin:$PATH": f"PATH={BIN}:$PATH PYTHONPATH={ROOT} RAY_USAGE_STATS_ENABLED=0",
        "ray start --": "ray start --object-store-memory=150000000 --",
    }.items():
        assert change in text
        text = text.replace(change, into)
    (folder / "cluster-on-premise.yaml").write_text(text, encoding="utf-8")


def write_submission(folder: Path) -> Path:
    """A working directory with a job whose tower is on the host with the accelerator, all else on the other."""
    paths = {name: str(write_data(folder / f"{name}.parquet", rows=2000, seed=1)) for name in ("train", "test")}
    (folder / "submitted").mkdir()
    nodes = [
        {"labels": {"kind": "cpu"}, "readers": 1, "servers": 2},
        {"labels": {"kind": "gpu"}, "resources": {"CPU": 1.0}, "towers": 1},
    ]
    return write_job(
        folder / "submitted" / "job.yaml",
        data={**paths, "weight": "weight"},
        roles={"readers": 1, "servers": 2, "towers": 1, "nodes": nodes},
        run={"folder": str(folder / "runs" / "across")},
    ).parent


def await_that(holds: Callable[[], bool], *, what: str, deadline_s: float) -> None:
    deadline_t = time.monotonic() + deadline_s
    while not holds():
        if time.monotonic() > deadline_t:
            pytest.fail(f"{what}: not within {deadline_s:g} s")
        time.sleep(1.0)


def test_ray_up_on_separate_hosts_trains_a_submitted_job_and_leaves_nothing(site: Site) -> None:
    submitted = write_submission(site.folder)
    assert "valid for Ray" in site.client("hetero cluster check cluster-on-premise.yaml")
    site.client("ray up -y --no-config-cache cluster-on-premise.yaml")
    with site.hosts.running(
        "client", "bash", "-c", site.typed("exec ray dashboard cluster-on-premise.yaml"), variables=ENVIRONMENT
    ):
        await_that(lambda: len(site.nodes()) == 3, what="three nodes", deadline_s=JOIN_S)
        check_nodes(site.nodes())
        assert "Active:" in site.client("ray exec cluster-on-premise.yaml 'ray status'")
        said = site.client(f"ray job submit --working-dir {submitted} -- hetero train job.yaml", deadline_s=240)
        assert "succeeded" in said
    check_run(site.folder)
    site.client("ray down -y cluster-on-premise.yaml")
    for host in ("head", "cpu", "gpu"):
        check_nothing_left(site.hosts, host)


def check_nodes(nodes: list[dict[str, Any]]) -> None:
    """Every node has the resources and labels that the cluster file gives its kind."""
    by_host = {node["node_ip"]: node for node in nodes}
    assert set(by_host) == set(ADDRESSES.values()) - {ADDRESSES["client"]}
    gpu, cpu, head = (by_host[ADDRESSES[name]] for name in ("gpu", "cpu", "head"))
    assert gpu["labels"]["hetero/accelerator"] == "v100-16gb"
    assert (gpu["labels"]["kind"], cpu["labels"]["kind"], head["labels"]["kind"]) == ("gpu", "cpu", "head")
    assert (gpu["resources_total"]["GPU"], cpu["resources_total"].get("GPU", 0)) == (1, 0)
    assert head["resources_total"].get("CPU", 0) == 0


def check_run(folder: Path) -> None:
    """It ran across the hosts, and gives the bits of one process."""
    run = folder / "runs" / "across"
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    where = {role: place.split()[0] for role, place in summary["nodes"].items()}
    cpu, gpu = ADDRESSES["cpu"], ADDRESSES["gpu"]
    assert where == {"sequencer/0": cpu, "reader/0": cpu, "server/0": cpu, "server/1": cpu, "tower/0": gpu}
    words = ("train", "submitted/job.yaml", "--run", "runs/alone", "--in-process", "--json")
    alone = hetero(*words, cwd=folder)
    assert alone.code == 0, alone.err
    losses = [np.load(folder / "runs" / name / "losses.npy") for name in ("across", "alone")]
    np.testing.assert_array_equal(*losses)


def check_nothing_left(hosts: Hosts, host: str) -> None:
    """No process but the host's own sshd. Workers end by themselves once their head has gone."""
    deadline_t = time.monotonic() + END_S
    while left := hosts.processes(host):
        if time.monotonic() > deadline_t:
            pytest.fail(f"on {host} after {END_S:g} s: {left}")
        time.sleep(1.0)
