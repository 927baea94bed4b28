"""One small local Ray for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import ray

from actors.context import set_worker_variables
from actors.naming import NAMESPACE


@pytest.fixture(scope="session", autouse=True)
def local_ray() -> Iterator[None]:
    set_worker_variables()
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's workers would yield to whatever else the machine runs
    ray.init(
        address="local",
        num_cpus=8,
        object_store_memory=150_000_000,
        namespace=NAMESPACE,
        include_dashboard=False,
        log_to_driver=False,
    )
    yield
    ray.shutdown()
