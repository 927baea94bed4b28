"""`hetero probe`: its table of known devices, and the cluster file it writes, which planning reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from actors.links import PairLinks
from hetero.hardware.devices import Link
from hetero.hardware.probe import Accelerator, probe_machine
from pipelines.cli import main
from pipelines.cluster_file import load_cluster
from pipelines.probe import Probed, ProbeResult, write_cluster_file


def probed() -> ProbeResult:
    machine = probe_machine()
    gpu = Accelerator(kind="cuda", index=0, name="NVIDIA H200", memory_bytes=141 * 10**9)
    with_gpu = replace(machine, accelerators=(gpu,))
    cpu = {"CPU": 4.0, "memory": 1.0}
    nodes = (
        Probed(name="0", labels={"role": "cpu", "ray.io/x": "y"}, resources=cpu, machine=machine, rates=None),
        Probed(name="1", labels={"role": "cpu"}, resources=cpu, machine=machine, rates=None),
        Probed(name="2", labels={"role": "gpu"}, resources={**cpu, "GPU": 1.0}, machine=with_gpu, rates=None),
    )
    link = Link(name="measured", latency_s=1e-3, bytes_per_s=1.5e9)
    return ProbeResult(nodes=nodes, links=(PairLinks(first=0, second=1, store=link, collective=link),))


def test_a_probe_becomes_a_cluster_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    write_cluster_file(probed(), path=path)
    cluster = load_cluster(path)
    assert [(kind.count, kind.cores, kind.accelerator) for kind in cluster.kinds] == [(2, 4, ""), (1, 4, "h200")]
    assert {kind.network_bytes_per_s for kind in cluster.kinds} == {1.5e9}
    assert cluster.kinds[1].labels == {"role": "gpu", "hetero/accelerator": "h200"}
    assert probed().shown() is not None
    json.dumps(probed().to_dict())


def test_known_devices_have_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--known", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert all(device["source"] for device in record["devices"])
    assert {"h200", "t4"} <= {device["name"] for device in record["devices"]}
    assert main(["probe", "--known"]) == 0
    assert "NVIDIA" in capsys.readouterr().out


def test_this_machine_is_looked_at(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["probe", "--no-rates", "--json", "--disk", str(tmp_path)]) == 0
    (node,) = json.loads(capsys.readouterr().out)["nodes"]
    assert node["machine"]["cores"] > 0
    assert main(["probe", "--disk", str(tmp_path / "none")]) == 2
    assert "--disk" in capsys.readouterr().err
