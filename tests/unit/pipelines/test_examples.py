"""Every example is a job that can be built, and stands in the examples' table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hetero.data.token_store import write_tokens
from pipelines.build import check_tower
from pipelines.deep_resolve import resolve_deep
from pipelines.deep_schema import is_deep, load_deep_job
from pipelines.job import load_job
from pipelines.resolve import resolve
from pipelines.schema import Dense

EXAMPLES = Path(__file__).parents[3] / "examples"
JOBS = sorted(EXAMPLES.glob("*.yaml"))
DEEP = [path for path in JOBS if is_deep(path)]
WIDE = [path for path in JOBS if path not in DEEP]


@pytest.mark.parametrize("path", WIDE, ids=lambda path: path.stem)
def test_it_builds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_DATA", "/data")
    job = load_job(path, overrides=["data.train=/data/train.parquet", "data.test=/data/test.parquet"])
    features = [feature.model_copy(update=_known(feature)) for feature in job.features.dense]
    texts = [text.model_copy(update={"vocabulary": 100, "mask": 99}) for text in job.features.text]
    known = {"dense": tuple(features), "text": tuple(texts)}
    job = job.model_copy(update={"features": job.features.model_copy(update=known)})
    check_tower(resolve(job))


@pytest.mark.parametrize("path", DEEP, ids=lambda path: path.stem)
def test_a_deep_one_resolves(path: Path, tmp_path: Path) -> None:
    tokens = np.arange(5000) % 66
    for part in ("train", "validation"):
        write_tokens(tmp_path / part, [tokens], tokenizer="char", vocabulary=66, mask=65)
    folders = [f"text.{part}={tmp_path / part}" for part in ("train", "validation")]
    assert resolve_deep(load_deep_job(path, overrides=folders)).steps > 0


def _known(feature: Dense) -> dict[str, float]:
    """Mean and std that the data would say, which are not here."""
    return {"mean": 0.0, "std": 1.0} if feature.transform.value == "standard" else {}


def test_the_table_names_every_job() -> None:
    told = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert JOBS
    assert [path.name for path in JOBS if path.name not in told] == []
