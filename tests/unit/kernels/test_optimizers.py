"""The CPU kernels of row optimizers give the bits of the definition in numpy; every operation is rounded by itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels.jit import kernel
from hetero.kernels.optimizers import LARGEST_GRADIENT, is_finite, tree_sum, update_room, update_row
from hetero.optim.definition import KIND, first_state, hyper_array, row_width, tree_mean, update_reference
from hetero.records import F32, RowOptimizer, RowOptimizerSpec
from tests.support.row_updates import DIMS, UpdateCase, assert_same_bits, update_cases


@kernel
def update_rows(kind: int, hyper: F32, rows: F32, gradients: F32, room: F32) -> None:
    dim = gradients.shape[1]
    for i in range(len(rows)):
        row = np.uint64(rows.ctypes.data) + np.uint64(4 * rows.shape[1] * i)
        gradient = np.uint64(gradients.ctypes.data) + np.uint64(4 * dim * i)
        update_row(kind, np.uint64(hyper.ctypes.data), row, dim, gradient, np.uint64(room.ctypes.data))


@kernel
def sum_of(values: F32, count: int) -> np.float32:
    return np.float32(tree_sum(np.uint64(values.ctypes.data), count))


@kernel
def finite(values: F32, start: int, count: int) -> bool:
    return is_finite(np.uint64(values.ctypes.data) + np.uint64(4 * start), count)


def updated(spec: RowOptimizerSpec, rows: F32, gradients: F32, *, room: F32 | None = None) -> F32:
    copy = rows.copy()
    scratch = update_room(gradients.shape[1]) if room is None else room
    update_rows(KIND[spec.kind], hyper_array(spec), copy, gradients, scratch)
    return copy


@pytest.mark.parametrize("kind", RowOptimizer)
def test_kernel_gives_the_bits_of_numpy(kind: RowOptimizer) -> None:
    @settings(max_examples=60, deadline=None)
    @given(update_cases(kind))
    def check(case: UpdateCase) -> None:
        kernel_rows = numpy_rows = case.rows
        for gradients in case.gradients:
            kernel_rows = updated(case.spec, kernel_rows, gradients)
            with np.errstate(all="ignore"):
                numpy_rows = update_reference(case.spec, numpy_rows, gradients)
            assert_same_bits(kernel_rows, numpy_rows)

    check()


def fused(a: F32, b: F32, c: F32) -> F32:
    """a * b + c rounded once: the product of two float32 is exact in 64 bits of mantissa, their sum nearly always."""
    return (a.astype(np.longdouble) * b + c).astype(np.float32)


def rounded_apart(a: F32, b: F32, c: F32) -> F32:
    return a * b + c


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="no wider float to compute a fused operation with")
@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (RowOptimizer.SGD, "weights"),
        (RowOptimizer.ADAGRAD, "sum of squares"),
        (RowOptimizer.ADAM, "first moment"),
        (RowOptimizer.FTRL, "n"),
    ],
)
def test_multiplications_and_additions_are_not_fused(kind: RowOptimizer, column: str) -> None:
    """Operands for which a fused multiply-add gives other bits in many places: the kernel gives the plain ones."""
    dim, random = 64, np.random.default_rng(1)
    spec = RowOptimizerSpec(kind=kind, lr=0.3)
    w, g, state = (random.uniform(0.5, 1.5, (200, dim)).astype(np.float32) for _ in range(3))
    lr, beta1, rest1 = np.float32(0.3), np.float32(0.9), np.float32(1) - np.float32(0.9)
    operands = {
        "weights": (-lr * np.ones_like(g), g, w),
        "sum of squares": (g, g, state),
        "first moment": (rest1 * np.ones_like(g), g, beta1 * state),
        "n": (g, g, state),
    }[column]
    plain, once = rounded_apart(*operands), fused(*operands)
    assert (plain != once).mean() > 0.05

    rows = np.zeros((200, row_width(spec, dim)), np.float32)
    rows[:, :dim] = w
    first = {"weights": 0, "sum of squares": dim, "first moment": dim, "n": 2 * dim}[column]
    place = slice(first, first + dim)
    if column != "weights":
        rows[:, place] = state
    assert_same_bits(updated(spec, rows, g)[:, place], plain)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="no wider float to compute a fused operation with")
def test_squares_are_rounded_before_the_tree_adds_them() -> None:
    g = np.random.default_rng(2).uniform(0.5, 1.5, (400, 2)).astype(np.float32)
    plain: F32 = (g[:, 0] * g[:, 0] + g[:, 1] * g[:, 1]) / np.float32(2)  # type: ignore[assignment]
    once = fused(g[:, 0], g[:, 0], g[:, 1] * g[:, 1]) / np.float32(2)
    assert (plain != once).mean() > 0.05
    rows = np.zeros((400, 3), np.float32)
    assert_same_bits(updated(RowOptimizerSpec(), rows, g)[:, 2], plain)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="no wider float to compute a fused operation with")
def test_the_penalty_is_rounded_before_it_is_added() -> None:
    random = np.random.default_rng(3)
    w, g = (random.uniform(0.5, 1.5, (200, 16)).astype(np.float32) for _ in range(2))
    l2 = np.full_like(w, 0.3)
    plain, once = g + l2 * w, fused(l2, w, g)
    assert (plain != once).mean() > 0.05
    spec = RowOptimizerSpec(kind=RowOptimizer.SGD, lr=1.0, l2=0.3)
    assert_same_bits(updated(spec, w, g), w - plain)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from((*DIMS, 4, 7, 8, 9, 31, 33, 100)), st.integers(0, 2**32 - 1))
def test_sums_follow_the_tree(count: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(1, count)).astype(np.float32)
    room = np.full(2 * count + 2, np.nan, np.float32)
    room[:count] = values[0]
    total = np.float32(sum_of(room, count))
    assert_same_bits(np.array([total / np.float32(count)]), tree_mean(values))


def test_the_tree_adds_upper_to_lower_halves() -> None:
    """Operands whose sum depends on the order: ((a + c) + (b + d)) for four, never one after the other."""
    big, small = 2.0**24, 1.0
    room = np.array([big, small, -big, small], np.float32)
    assert sum_of(room, 4) == 2.0
    assert np.float32(big) + np.float32(small) - np.float32(big) + np.float32(small) == 1.0


def test_where_the_scratch_memory_lies_changes_no_bit() -> None:
    random = np.random.default_rng(4)
    for dim in DIMS:
        spec = RowOptimizerSpec(l2=0.1)
        rows, g = random.normal(size=(5, dim + 1)).astype(np.float32) ** 2, random.normal(size=(5, dim))
        want = updated(spec, rows, g.astype(np.float32))
        for shift in range(1, 5):
            room = np.full(3 * dim + 8, np.nan, np.float32)[shift : shift + 3 * dim]
            assert_same_bits(updated(spec, rows, g.astype(np.float32), room=room), want)


def test_scratch_memory_begins_on_a_cache_line() -> None:
    for dim in DIMS:
        room = update_room(dim)
        assert room.shape == (3 * dim,)
        assert room.ctypes.data % 64 == 0


def test_nothing_beside_the_row_is_written() -> None:
    for kind in RowOptimizer:
        for dim in DIMS:
            spec = RowOptimizerSpec(kind=kind, l2=0.1)
            guarded = np.full((3, row_width(spec, dim)), 7.5, np.float32)
            middle = np.ascontiguousarray(guarded)
            hyper, gradients = hyper_array(spec), np.full((3, dim), 0.5, np.float32)
            update_rows(KIND[kind], hyper, middle[1:2], gradients[1:2], update_room(dim))
            np.testing.assert_array_equal(middle[[0, 2]], guarded[[0, 2]])
            assert (middle[1, :dim] != 7.5).any()
            np.testing.assert_array_equal(gradients, np.full((3, dim), 0.5, np.float32))
            np.testing.assert_array_equal(hyper, hyper_array(spec))


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf, LARGEST_GRADIENT, -LARGEST_GRADIENT, 3.4e38])
def test_one_bad_element_anywhere_is_seen(bad: float) -> None:
    for count in (1, 2, 8, 17, 64):
        values = np.zeros(count + 2, np.float32)
        values[0] = values[-1] = np.nan  # beside the gradient: not looked at
        assert finite(values, 1, count)
        for at in range(1, count + 1):
            values[1 : count + 1] = 0
            values[at] = bad
            assert not finite(values, 1, count)


def test_large_and_tiny_gradients_below_the_limit_are_finite() -> None:
    below = np.nextafter(np.float32(LARGEST_GRADIENT), np.float32(0))
    values = np.array([below, -below, 0.0, -0.0, 1e-45, 1e-20, 1.0], np.float32)
    assert finite(values, 0, len(values))
    with np.errstate(over="raise"):
        assert np.isfinite((values * values).sum() * np.float32(2**15))


def test_a_row_recovers_from_the_largest_gradient_there_is() -> None:
    """What the limit is for: just below it, no optimizer's state becomes infinite or NaN, at any width."""
    below = np.nextafter(np.float32(LARGEST_GRADIENT), np.float32(0))
    for kind in RowOptimizer:
        for dim in DIMS:
            spec = RowOptimizerSpec(kind=kind, lr=0.05, l1=0.1)
            weights = np.zeros((1, dim), np.float32)
            rows = np.concatenate([weights, first_state(spec, weights)], axis=1)
            for step in range(20):
                rows = updated(spec, rows, np.full((1, dim), below if step % 2 else -below, np.float32))
                assert np.isfinite(rows).all(), (kind, dim, step)
