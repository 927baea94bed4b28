"""Training on a cluster of several raylets that runs already, reached by its address from a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.cluster_utils import Cluster

from tests.support.cli import hetero, write_job
from tests.support.jobs import write_data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_data(tmp_path / "train.parquet", rows=2000, seed=1)
    write_data(tmp_path / "test.parquet", rows=500, seed=2)
    write_job(tmp_path / "job.yaml")
    return tmp_path


@pytest.mark.slow
def test_two_raylets_by_address_give_the_bits_of_one_process(folder: Path) -> None:
    nodes = {"num_cpus": 2, "object_store_memory": 100_000_000, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, head_node_args=nodes)
    try:
        cluster.add_node(num_cpus=2, object_store_memory=100_000_000)
        ran = hetero("train", "job.yaml", "--run", "runs/far", "--address", cluster.address, "--json", cwd=folder)
        assert ran.code == 0, ran.err
        assert ran.json["placement"] == f"Ray at {cluster.address}"
    finally:
        cluster.shutdown()
    alone = hetero("train", "job.yaml", "--run", "runs/alone", "--in-process", "--json", cwd=folder)
    assert alone.code == 0, alone.err
    losses = [np.load(folder / "runs" / name / "losses.npy") for name in ("far", "alone")]
    np.testing.assert_array_equal(losses[0], losses[1])


def test_an_address_without_a_cluster_is_the_users_mistake(folder: Path) -> None:
    ran = hetero("train", "job.yaml", "--address", "127.0.0.1:1", "--json", cwd=folder)
    assert ran.code == 2, ran.out + ran.err
    assert "127.0.0.1:1" in ran.json["error"]["message"]
