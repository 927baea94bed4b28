"""Servers as actors with a part of their rows on SSD: the bits of one process with all in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hetero.loops.warm import warm_kernels
from hetero.records import RoleSpec
from tests.support.runs import finish
from tests.support.tiered_jobs import MEMORY, job_of, tiered


@pytest.mark.slow
def test_a_small_memory_on_ray_gives_the_bits_of_a_large_one_in_process(tmp_path: Path) -> None:
    job = job_of(tmp_path, window=4, max_steps=40)
    warm_kernels(tiered(job, tmp_path))
    whole = finish(job, in_process=True)
    parts = finish(replace(tiered(job, tmp_path), servers=RoleSpec(count=2)), in_process=False)
    np.testing.assert_array_equal(parts.outcome.losses, whole.outcome.losses)
    tiers = parts.report.tiers
    assert parts.report.rows == whole.report.rows
    assert tiers["memory_rows"] + tiers["ssd_rows"] == sum(whole.report.rows.values())
    assert tiers["ssd_hits"] > 0
    assert tiers["memory_bytes"] <= tiers["memory_budget_bytes"] <= 2 * MEMORY
    assert list((tmp_path / "ssd").iterdir()) == []
