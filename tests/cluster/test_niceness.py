"""Who works ahead of the towers yields to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import ray

from tests.support.niceness import Worker


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads have priorities of their own on Linux")
def test_all_threads_of_a_process_that_works_ahead_yield() -> None:
    worker = cast(Any, ray).remote(max_concurrency=2)(Worker)
    ahead, other = worker.remote(ahead=True), worker.remote(ahead=False)
    before, after = ray.get(ahead.niceness.remote(), timeout=60)
    assert after == {min(before + 5, 19)}
    before, after = ray.get(other.niceness.remote(), timeout=60)
    assert after == {before}
