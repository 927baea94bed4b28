"""Policies against an oracle: who reads what in every step, what is there at the end, and what went and why."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.embedding.policies.admission import WaitingKeys
from hetero.records import AdmissionSpec, EvictionSpec, JobSpec, KeySet
from tests.support.policy_runs import BUCKETS, Outcome, Uses, on_oracle, on_servers, policy_job

USES = st.integers(1, 3).flatmap(lambda shows: st.tuples(st.just(shows), st.integers(0, shows)))
STEPS = st.lists(st.dictionaries(st.integers(0, 12), USES, max_size=6).map(Uses), min_size=1, max_size=14)
ADMISSIONS = st.one_of(
    st.builds(AdmissionSpec, after=st.integers(2, 4), forget_days=st.none() | st.integers(1, 3)),
    st.builds(AdmissionSpec, score=st.sampled_from([0.3, 1.0, 2.5]), forget_days=st.none() | st.integers(1, 3)),
    st.builds(AdmissionSpec, probability=st.sampled_from([0.05, 0.3, 0.7]), forget_days=st.none() | st.integers(1, 3)),
)
EVICTIONS = st.builds(
    EvictionSpec,
    expire_days=st.none() | st.integers(1, 3),
    min_score=st.none() | st.sampled_from([0.15, 0.5, 2.0]),
    capacity=st.none() | st.sampled_from([BUCKETS, 2 * BUCKETS]),
    decay=st.sampled_from([0.5, 0.98, 1.0]),
)


def assert_same(found: Outcome, wanted: Outcome) -> None:
    for step, (read, want) in enumerate(zip(found.reads, wanted.reads, strict=True)):
        np.testing.assert_array_equal(read, want, err_msg=f"step {step}")
    assert found.rows == wanted.rows
    assert found.waiting == wanted.waiting
    assert found.gone == wanted.gone


@given(
    steps=STEPS,
    admission=st.none() | ADMISSIONS,
    eviction=st.none() | EVICTIONS,
    window=st.sampled_from([0, 1, 5]),
    device=st.sampled_from([None, torch.device("cpu")]),
)
@settings(max_examples=60, deadline=None)
def test_policies_do_what_the_oracle_does(
    steps: list[Uses],
    admission: AdmissionSpec | None,
    eviction: EvictionSpec | None,
    window: int,
    device: torch.device | None,
) -> None:
    if admission is None and eviction is None:
        eviction = EvictionSpec(expire_days=1)
    job = policy_job(admission, eviction, servers=2)
    assert_same(on_servers(job, steps, window=window, device=device), on_oracle(job, steps))


def scripted(job: JobSpec, *steps: dict[int, tuple[int, int]], window: int = 0) -> Outcome:
    return on_servers(job, [Uses(step) for step in steps], window=window)


@pytest.mark.parametrize("window", [0, 4])
def test_a_key_reads_zeros_until_it_is_seen_often_enough(window: int) -> None:
    job = policy_job(AdmissionSpec(after=3), None)
    once = {7: (1, 0)}
    done = scripted(job, once, once, once, once, window=window)
    assert [bool(read.any()) for read in done.reads] == [False, False, True, True]
    assert list(done.rows) == [7]
    assert scripted(job, once, once, window=window).waiting == {7: 2}


def test_what_was_not_seen_for_some_days_is_counted_anew() -> None:
    job = policy_job(AdmissionSpec(after=2, forget_days=2), None, day_steps=1)
    seen, other = {7: (1, 0)}, {8: (1, 0)}
    assert list(scripted(job, seen, other, seen).rows) == [7]
    assert scripted(job, seen, other, {9: (1, 0)}, seen).rows == {}


@pytest.mark.parametrize("window", [0, 2])
def test_a_row_comes_by_its_score_when_a_day_begins(window: int) -> None:
    job = policy_job(AdmissionSpec(score=1.0), None, day_steps=2)
    clicked, shown = (1, 1), (1, 0)
    done = scripted(job, {1: clicked, 2: shown}, {1: shown}, {1: shown, 2: shown}, window=window)
    assert [bool(read[0].any()) for read in done.reads] == [False, False, True]
    assert not done.reads[2][1].any()
    assert (list(done.rows), done.waiting) == ([1], {2: 2})


def test_admission_by_probability_lets_about_so_many_in() -> None:
    keys = KeySet(np.zeros(100_000, np.uint16), np.arange(100_000, dtype=np.uint64))
    waiting = WaitingKeys(AdmissionSpec(probability=0.3), seeds=np.array([5], np.uint64), shift=np.uint64(52))
    first = waiting.admitted(keys)
    assert abs(first.mean() - 0.3) < 0.01
    waiting.count_step(keys, np.empty((len(keys), 0), np.float32), day=0)
    second = waiting.admitted(keys)
    assert abs(second[~first].mean() - 0.3) < 0.01  # another draw, whatever the first was
    assert abs(second[first].mean() - 0.3) < 0.01


def test_rows_go_for_each_reason() -> None:
    often, rarely = (3, 3), (1, 0)
    expire = policy_job(None, EvictionSpec(expire_days=1), day_steps=1)
    assert scripted(expire, {1: often, 2: rarely}, {1: often}, {1: often}, {1: often}).gone == {"expired": 1}
    score = policy_job(None, EvictionSpec(min_score=0.5), day_steps=1)
    assert list(scripted(score, {1: often, 2: rarely}, {1: often}).rows) == [1]
    capacity = policy_job(None, EvictionSpec(capacity=BUCKETS), day_steps=1)
    many = {key: often if key == 3 else rarely for key in range(64)}
    done = scripted(capacity, many, {3: often})
    assert 3 in done.rows
    assert len(done.rows) <= BUCKETS
    assert done.gone["over_capacity"] == 64 - len(done.rows)
