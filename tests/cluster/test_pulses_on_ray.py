"""Pulses of a run on Ray: of every role, from its beginning to its end, and equal to what the run reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass, RunProgress
from hetero.observe.metrics import SAMPLES, SECONDS, Pulse
from hetero.records import RoleSpec
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.runs import alive


@pytest.mark.parametrize("in_process", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_every_role_tells_and_the_last_pulse_is_the_whole(tmp_path: Path, in_process: bool) -> None:
    data = data_spec(write_data(tmp_path / "data.parquet", rows=1500, seed=1))
    job = small_job(data, readers=RoleSpec(count=2), servers=RoleSpec(count=2))
    pulses: dict[str, list[Pulse]] = {}

    def watch(now: RunProgress) -> None:
        for pulse in now.pulses:
            pulses.setdefault(pulse.role, []).append(pulse)

    with alive(job, in_process=in_process) as run:
        outcome = run.train(DataPass.open(data, phase=Phase.TRAIN), watch=watch)
        spans = {role.name: role.spans.by_name() for role in run.report().roles}
    roles = {"reader/0", "reader/1", "server/0", "server/1", "tower/0"}
    assert set(pulses) == (roles if in_process else roles | {"sequencer/0"})
    for role, told in pulses.items():
        assert len(told) >= 2, role
        assert sorted(told, key=lambda pulse: pulse.t) == told
    last = {(sample.metric, sample.label): sample.value for sample in pulses["tower/0"][-1].samples}
    assert last[SAMPLES, None] == outcome.rows
    for name, seconds in spans["tower/0"].items():
        assert last[SECONDS, name] == pytest.approx(seconds, abs=0.5)
