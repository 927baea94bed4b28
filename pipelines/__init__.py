"""Composition only: job files, building a run from them, training, evaluating, and the command line.

from pipelines import Job, load_job

job = load_job("examples/movielens.yaml", overrides=["train.epochs=1"])
summary = job.fit()
"""

from pipelines.job import Job, load_job

__all__ = ["Job", "load_job"]
