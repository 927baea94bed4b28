"""Over hundreds of windows the object store holds what is under way and no more; what spills is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from actors.store import store_used_bytes
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass, RunProgress
from hetero.records import RoleSpec
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.runs import alive

BATCH, STEPS = 2048, 520


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_use_is_flat_over_500_windows_and_nothing_spills(tmp_path: Path) -> None:
    files = [write_data(tmp_path / f"{n}.parquet", rows=4 * BATCH, seed=n) for n in range(4)]
    job = small_job(data_spec(*files), batch_size=BATCH, epochs=STEPS // 16 + 1, max_steps=STEPS)
    job = replace(job, window=1, servers=RoleSpec(count=2), deadline_s=60.0)
    seen: list[tuple[int, int]] = []

    def look(progress: RunProgress) -> None:
        seen.append((progress.step, store_used_bytes()))

    with alive(job, in_process=False) as run:
        outcome = run.train(DataPass.open(job.train, phase=Phase.TRAIN, epochs=job.epochs, max_steps=STEPS), watch=look)
        report = run.report()
    assert len(outcome.losses) == STEPS
    early = [used for step, used in seen if 50 <= step < STEPS // 2]
    late = [used for step, used in seen if step >= STEPS // 2]
    assert len(early) >= 3, seen
    assert len(late) >= 3, seen
    assert max(early) > 0  # batches are large enough to lie in the store
    assert max(late) <= 1.5 * max(early) + (1 << 20), (early, late)
    assert report.store is not None
    assert report.store.spilled_bytes == 0
