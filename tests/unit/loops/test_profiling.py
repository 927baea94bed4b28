"""Tasks measured one at a time: all of them, none twice, and waiting is told from computing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from hetero.errors import DataError
from hetero.hardware.probe import probe_machine
from hetero.keys.windows import TowerWindow
from hetero.loops.profiling import default_sizes, profile_node
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass
from hetero.loops.windows import WindowCutter
from hetero.planning.task_profile import (
    READER_TASKS,
    ROUTING_TASKS,
    SEQUENCER_TASKS,
    SERVER_TASKS,
    TOWER_TASKS,
    NodeProfile,
)
from hetero.records import JobSpec, RoleSpec
from tests.support.jobs import data_spec, small_job, write_data

WAIT_ROW_S = 1e-4
BUILDING_S = 0.1


class Waits(nn.Module):
    """Waits as a device would that takes WAIT_ROW_S a row, then computes a little."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, dense: torch.Tensor, embeddings: Mapping[str, torch.Tensor]) -> torch.Tensor:
        time.sleep(WAIT_ROW_S * len(dense))
        out: torch.Tensor = self.layer(dense).squeeze(1) + embeddings["user"].sum(1)
        return out


def measured(job: JobSpec, *sizes: int) -> NodeProfile:
    data = DataPass.open(job.train, phase=Phase.TRAIN)
    return profile_node(job, kind="here", machine=probe_machine(), data=data, make=Waits, sizes=sizes)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    path = write_data(tmp_path_factory.mktemp("data") / "data.parquet", rows=1000, seed=1, row_group=250)
    return small_job(data_spec(path), batch_size=128, towers=RoleSpec(count=4))


@pytest.mark.parametrize("window", [0, 4])
def test_every_task_is_measured(job: JobSpec, window: int) -> None:
    node = measured(replace(job, window=window), 32, 64)
    wanted = {
        *READER_TASKS,
        *ROUTING_TASKS,
        *SEQUENCER_TASKS,
        *SERVER_TASKS,
        *TOWER_TASKS,
        "forward/layer",
        "backward/layer",
    }
    assert set(node.tasks) == wanted
    for name, points in node.tasks.items():
        assert [point.rows for point in points] == [32, 64], name
        assert all(point.seconds >= 0 and point.cpu_s >= 0 for point in points), name
    for name in ("parse", "dedup", "window", "lookup", "push", "forward", "backward", "optimizer"):
        assert node.tasks[name][1].seconds > 0, name
    assert node.tasks["forward/layer"][1].flops == 2 * 2 * 64
    assert node.tasks["read"][0].bytes > 0


def test_waiting_is_no_computing(job: JobSpec) -> None:
    point = measured(job, 64).tasks["forward"][0]
    assert point.seconds >= 64 * WAIT_ROW_S
    assert point.cpu_s < point.seconds / 2


def test_building_windows_is_no_part_of_a_step(job: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers and the sequencer build them meanwhile; here they are built when leasing asks for them."""
    build = WindowCutter.build

    def slow(cutter: WindowCutter) -> tuple[TowerWindow, ...]:
        end_t = time.process_time() + BUILDING_S
        while time.process_time() < end_t:
            pass
        return build(cutter)

    monkeypatch.setattr(WindowCutter, "build", slow)
    tasks = measured(replace(job, window=2), 64).tasks
    assert sum(tasks[name][0].seconds for name in ("gather", "return", "backward")) < BUILDING_S / 2
    assert sum(tasks[name][0].cpu_s for name in TOWER_TASKS) < BUILDING_S / 2


def test_a_forward_pass_counts_once_a_step(job: JobSpec) -> None:
    """What blocks are measured with is no step."""
    point = measured(job, 512).tasks["forward"][0]
    assert point.seconds < 1.1 * 512 * WAIT_ROW_S


def test_sizes_are_those_of_a_towers_share_and_of_the_batch(job: JobSpec) -> None:
    assert default_sizes(job) == (16, 32, 128)


def test_data_without_rows_are_refused(tmp_path: Path) -> None:
    job = small_job(data_spec(write_data(tmp_path / "data.parquet", rows=0, seed=1)))
    with pytest.raises(DataError):
        measured(job, 16)
