"""Costs of collectives: known values, limits, and a ring computed message by message."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import PlanError
from hetero.hardware.devices import DEVICES, LINKS, Link, device, link
from hetero.planning.collectives import Algorithm, Collective, Place, fastest, seconds

FAST = Link(name="fast", latency_s=1e-6, bytes_per_s=100e9)
SLOW = Link(name="slow", latency_s=1e-5, bytes_per_s=10e9)


def place(inside: int, machines: int = 1, sharing: int = 1) -> Place:
    return Place(inside=inside, machines=machines, inside_link=FAST, across_link=SLOW, sharing=sharing)


def test_ring_is_the_sum_of_its_messages() -> None:
    """n ranks, parts of 1/n of the size: n - 1 messages to reduce and scatter, as many to gather."""
    ranks, size = 6, 12e6
    one = FAST.seconds(size / ranks)
    reduce_scatter = seconds(Collective.REDUCE_SCATTER, size_bytes=size, place=place(ranks), algorithm=Algorithm.RING)
    assert reduce_scatter == pytest.approx((ranks - 1) * one)
    all_reduce = seconds(Collective.ALL_REDUCE, size_bytes=size, place=place(ranks), algorithm=Algorithm.RING)
    assert all_reduce == pytest.approx(2 * (ranks - 1) * one)


def test_trees_win_on_small_messages_and_lose_nothing_on_large_ones() -> None:
    for size, at_most in ((1e3, 0.5), (1e9, 1.0001)):
        ring, tree = (
            seconds(Collective.ALL_REDUCE, size_bytes=size, place=place(32), algorithm=algorithm)
            for algorithm in (Algorithm.RING, Algorithm.TREE)
        )
        assert tree <= at_most * ring
    bruck = seconds(Collective.ALL_TO_ALL, size_bytes=1e9, place=place(8), algorithm=Algorithm.TREE)
    pairwise = seconds(Collective.ALL_TO_ALL, size_bytes=1e9, place=place(8), algorithm=Algorithm.RING)
    assert bruck == pytest.approx(pairwise * 1.5 / 0.875, rel=0.01)


def test_hierarchical_all_reduce_sends_each_machines_sum_once() -> None:
    """4 ranks in each of 2 machines: inside 2 * 3/4 of the size, across 2 * 1/2 of it through the machine's link."""
    size = 1e9
    got = seconds(Collective.ALL_REDUCE, size_bytes=size, place=place(4, 2), algorithm=Algorithm.HIERARCHICAL)
    assert got == pytest.approx(1.5 * size / 100e9 + 1.0 * size / 10e9, rel=1e-3)
    tree = seconds(Collective.ALL_REDUCE, size_bytes=size, place=place(4, 2), algorithm=Algorithm.TREE)
    assert got < tree


def test_groups_that_share_a_machines_link_share_its_rate() -> None:
    alone = fastest(Collective.ALL_REDUCE, size_bytes=1e9, place=place(1, 4))
    together = fastest(Collective.ALL_REDUCE, size_bytes=1e9, place=place(1, 4, sharing=8))
    assert together == pytest.approx(8 * alone, rel=0.01)


@settings(max_examples=100, deadline=None)
@given(
    collective=st.sampled_from(Collective),
    inside=st.integers(1, 8),
    machines=st.integers(1, 6),
    size=st.floats(1e3, 1e9),
)
def test_the_fastest_is_no_slower_than_any_and_grows_with_size(
    collective: Collective, inside: int, machines: int, size: float
) -> None:
    where = place(inside, machines)
    best = fastest(collective, size_bytes=size, place=where)
    every = [seconds(collective, size_bytes=size, place=where, algorithm=each) for each in Algorithm]
    assert best == min(every)
    assert (best == 0) == (where.ranks == 1)
    assert fastest(collective, size_bytes=2 * size, place=where) >= best
    least = (where.ranks - 1) / where.ranks * size / FAST.bytes_per_s
    assert best >= least * (1 - 1e-9)


def test_a_group_without_ranks_is_refused() -> None:
    with pytest.raises(PlanError, match="0 x 1 ranks"):
        fastest(Collective.ALL_GATHER, size_bytes=1, place=place(0))


def test_every_device_and_link_has_units_and_a_source() -> None:
    for known in DEVICES.values():
        assert 1e12 < known.single_flops <= known.half_flops < 1e16, known.name
        assert 1 << 30 < known.memory_bytes < 1 << 40
        assert known.source
    for known_link in LINKS.values():
        assert 1e-7 < known_link.latency_s < 1e-3
        assert 1e9 < known_link.bytes_per_s < 1e12, known_link.name
        assert known_link.source


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(PlanError, match="is it v100-32gb"):
        device("v100-32")
    with pytest.raises(PlanError, match="no link `smoke-signals`"):
        link("smoke-signals")
