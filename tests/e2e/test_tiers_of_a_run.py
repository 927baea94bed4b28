"""What a run with rows on SSD measured is its training alone, as the simulator predicts it, its bytes too."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.job import Job, load_job
from pipelines.tiers import study_tiers
from tests.support.cli import write_job
from tests.support.tiered_jobs import MEMORY, job_of


@pytest.mark.slow
def test_bytes_of_a_run_are_those_predicted_whatever_is_scored_after_it(tmp_path: Path) -> None:
    job_of(tmp_path)
    data = str(tmp_path / "data.parquet")
    write_job(
        tmp_path / "job.yaml",
        data={"train": data, "test": data},
        train={"batch_size": 256, "max_steps": 40, "window": 4, "precision": "fp32"},
        roles={"readers": 1, "servers": 1, "towers": 1},
    )
    storage = {"memory_bytes": MEMORY, "directories": [str(tmp_path / "ssd")], "ssd_bytes": 1 << 28, "io": "cached"}
    raw = load_job(tmp_path / "job.yaml").model_dump(mode="json", by_alias=True)
    run = Job(**{**raw, "storage": storage}).fit(run_folder=tmp_path / "run", in_process=True)
    assert run.tiers["ssd_hits"] > 0
    (told,) = study_tiers(tmp_path / "run", sample=1.0).predictions
    assert told.memory_hit_rate == pytest.approx(run.tiers["memory_hit_rate"])
    # a row whose chunk is being written is read from memory, if it comes early enough
    assert told.disk_read_bytes_per_sample == pytest.approx(run.tiers["disk_read_bytes_per_sample"], rel=0.35)
    assert told.disk_written_bytes_per_sample == pytest.approx(run.tiers["disk_written_bytes_per_sample"], rel=0.1)
