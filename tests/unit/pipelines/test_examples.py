"""Every example is a job that can be built, and stands in the examples' table."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.build import check_tower
from pipelines.job import load_job
from pipelines.resolve import resolve
from pipelines.schema import Dense

EXAMPLES = Path(__file__).parents[3] / "examples"
JOBS = sorted(EXAMPLES.glob("*.yaml"))


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_it_builds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_DATA", "/data")
    job = load_job(path, overrides=["data.train=/data/train.parquet", "data.test=/data/test.parquet"])
    features = [feature.model_copy(update=_known(feature)) for feature in job.features.dense]
    job = job.model_copy(update={"features": job.features.model_copy(update={"dense": tuple(features)})})
    check_tower(resolve(job))


def _known(feature: Dense) -> dict[str, float]:
    """Mean and std that the data would say, which are not here."""
    return {"mean": 0.0, "std": 1.0} if feature.transform.value == "standard" else {}


def test_the_table_names_every_job() -> None:
    told = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert JOBS
    assert [path.name for path in JOBS if path.name not in told] == []
