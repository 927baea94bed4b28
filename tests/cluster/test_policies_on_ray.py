"""Policies with every role an actor: the bits of one process that pulls every step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hetero.loops.warm import warm_kernels
from hetero.records import AdmissionSpec, Clock, EvictionSpec, RoleSpec
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.runs import finish


@pytest.mark.slow
def test_policies_on_ray_give_the_bits_of_one_process(tmp_path: Path) -> None:
    job = small_job(data_spec(write_data(tmp_path / "data.parquet", rows=900, seed=1), shuffle=True), batch_size=32)
    admission, eviction = AdmissionSpec(after=2, forget_days=2), EvictionSpec(expire_days=2, min_score=0.3)
    groups = tuple(replace(group, admission=admission, eviction=eviction) for group in job.groups)
    job = replace(job, groups=groups, clock=Clock(day_steps=7))
    warm_kernels(replace(job, window=4))
    one = finish(job, in_process=True)
    many = finish(replace(job, window=4, servers=RoleSpec(count=2), readers=RoleSpec(count=2)), in_process=False)
    np.testing.assert_array_equal(many.outcome.losses, one.outcome.losses)
    assert many.report.rows == one.report.rows
    assert many.report.drops == one.report.drops
    assert one.report.drops
