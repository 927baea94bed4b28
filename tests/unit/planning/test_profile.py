"""Chains from counts and rates: what a sample costs where, and what pooling changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hetero.hardware.devices import device
from hetero.planning.plan import plan_for_throughput
from hetero.planning.profile import POOLED_ON_SERVER, POOLED_ON_TOWER, Rates, Work, chain_of
from hetero.planning.tasks import Chain, Role, Usage
from hetero.records.cluster import ClusterSpec, NodeKind

CPU = NodeKind(name="cpu", count=50, price=1, cores=16, memory_bytes=64 << 30)
GPU = NodeKind(
    name="gpu", count=8, price=4, cores=8, memory_bytes=64 << 30, accelerator="v100-32gb", accelerators=2
)  # fmt: skip
CLUSTER = ClusterSpec(name="both", kinds=(CPU, GPU))
WORK = Work(
    file_bytes=300, dense=13, keys=26, distinct=0.25, row_floats=26 * 17, pooled_floats=26 * 16, tower_flops=3e6
)


def by_name(chain: Chain, name: str, kind: str) -> Usage:
    return next(task.usage[kind] for task in chain.tasks if task.name == name)


def test_seconds_follow_from_counts_and_rates() -> None:
    chain, rates = chain_of(WORK, cluster=CLUSTER), Rates()
    assert by_name(chain, "parse", "cpu").cpu_s == pytest.approx(300 / rates.parse_bytes_per_s / 16)
    rows = 26 * 17 * 4 * 0.25
    expected = (rows / rates.pull_bytes_per_s + rows / rates.push_bytes_per_s) / 16
    assert by_name(chain, "lookup", "cpu").cpu_s == pytest.approx(expected)
    on_device = by_name(chain, "tower", "gpu").device_s
    assert on_device == pytest.approx(3e6 / (2 * device("v100-32gb").half_flops * rates.device_share))
    assert by_name(chain, "tower", "cpu").device_s == 0
    assert by_name(chain, "tower", "cpu").cpu_s > 3e6 / rates.cpu_flops / 16


def test_roles_stay_together_and_may_part_only_between_each_other() -> None:
    chain = chain_of(WORK, cluster=CLUSTER)
    assert [task.role for task in chain.tasks] == [Role.READER] * 3 + [Role.SERVER, Role.TOWER]
    assert [task.begins for task in chain.tasks] == [True, False, False, True, True]


def test_pooling_on_the_server_sends_vectors_instead_of_rows() -> None:
    long_lists = replace(WORK, keys=2600, row_floats=2600 * 17)
    sent = {
        pooling: chain_of(long_lists, cluster=CLUSTER, pooling=pooling).tasks[3].output_bytes
        for pooling in (POOLED_ON_SERVER, POOLED_ON_TOWER)
    }
    assert sent[POOLED_ON_SERVER] == 26 * 16 * 4
    assert sent[POOLED_ON_TOWER] == 2600 * 17 * 4 * 0.25
    plan = plan_for_throughput(
        [chain_of(long_lists, cluster=CLUSTER, pooling=pooling) for pooling in sent], cluster=CLUSTER, throughput=1e5
    )
    assert plan.chain == POOLED_ON_SERVER


def test_measured_seconds_stand_instead_of_rates() -> None:
    measured = {"tower": {"gpu": Usage(cpu_s=1e-6, device_s=2e-6)}, "read": {"cpu": Usage(cpu_s=5e-6)}}
    chain = chain_of(WORK, cluster=CLUSTER, measured=measured)
    assert by_name(chain, "tower", "gpu") == Usage(cpu_s=1e-6, device_s=2e-6)
    assert by_name(chain, "tower", "cpu") == by_name(chain_of(WORK, cluster=CLUSTER), "tower", "cpu")
    assert by_name(chain, "read", "cpu") == Usage(cpu_s=5e-6)


def test_rows_take_the_memory_of_servers() -> None:
    large = replace(WORK, rows=10**10, row_bytes=92)
    plan = plan_for_throughput([chain_of(large, cluster=CLUSTER)], cluster=CLUSTER, throughput=1000)
    servers = next(stage for stage in plan.stages if Role.SERVER in stage.roles)
    assert servers.nodes >= 10**10 * 92 / (64 << 30)
    assert servers.bound_by == "memory"
