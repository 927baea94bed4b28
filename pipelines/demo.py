"""The first thing a newcomer runs: MovieLens 100K through Ray, from download to a table of results."""

from __future__ import annotations

from pathlib import Path

from hetero.observe.summary import Summary
from pipelines.datasets import fetch_movielens
from pipelines.job import load_job
from pipelines.progress import Progress
from pipelines.train import fit

JOB = Path(__file__).resolve().parent.parent / "examples" / "movielens.yaml"


def run_demo(*, progress: Progress, run_folder: Path) -> Summary:
    """Fetch the data unless it is there, train examples/movielens.yaml with its baseline, score, summarize.

    Raises DataError when the data cannot be had.
    """
    progress.phase("taking MovieLens 100K out of the wheel recbole 1.2.1")
    fetch_movielens(Path("data/ml-100k"))
    return fit(load_job(JOB), run_folder=run_folder, progress=progress)
