"""Answers of actors that are fetched before anybody waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest
import ray

from actors.calls import Answer, Fetched
from actors.naming import Member, Role
from hetero.errors import DeadlineError, LeaseError
from tests.support.gated_answers import LIMIT_S, Gated

SERVER = Member("calls", Role.SERVER, 0)


@pytest.fixture
def gated() -> Iterator[Any]:
    made = cast(Any, ray).remote(num_cpus=0, concurrency_groups={"control": 1})(Gated).remote()
    yield made
    ray.kill(made)


def fetched(ref: Any, fetcher: ThreadPoolExecutor, *, deadline_s: float) -> Fetched[Any]:
    return Fetched(Answer(ref=ref, member=SERVER, what="fetch", deadline_s=deadline_s), fetcher=fetcher)


def test_an_answer_is_fetched_and_its_error_raised(gated: Any) -> None:
    ray.get(gated.allow.remote(), timeout=LIMIT_S)
    with ThreadPoolExecutor(1) as fetcher:
        rows = fetched(gated.rows.remote(), fetcher, deadline_s=LIMIT_S)
        refused = fetched(gated.refuse.remote(), fetcher, deadline_s=LIMIT_S)
        np.testing.assert_array_equal(rows.result(), np.arange(100_000))
        with pytest.raises(LeaseError, match="row 7"):
            refused.result()


def test_the_deadline_begins_when_the_answer_is_needed(gated: Any) -> None:
    with ThreadPoolExecutor(1) as fetcher:
        rows = fetched(gated.rows.remote(), fetcher, deadline_s=0.5)
        fetcher.submit(lambda: None).result(timeout=LIMIT_S)  # the fetch has given up
        with pytest.raises(DeadlineError, match="calls/server/0"):
            rows.result()
        ray.get(gated.allow.remote(), timeout=LIMIT_S)
        np.testing.assert_array_equal(rows.result(), np.arange(100_000))
