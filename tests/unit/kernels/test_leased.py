"""Rows by slot are updated as the definition in numpy says, whatever their width; what is not finite changes none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels.leased import scatter_rows, update_slots_kernel
from hetero.kernels.optimizers import LARGEST_GRADIENT, update_room
from hetero.optim.definition import KIND, first_state, hyper_array, row_width, update_reference
from hetero.records import RowOptimizer, RowOptimizerSpec
from tests.support.row_updates import assert_same_bits


@pytest.mark.parametrize("kind", RowOptimizer)
def test_slots_are_updated_as_rows_are(kind: RowOptimizer) -> None:
    @settings(max_examples=40, deadline=None)
    @given(st.sampled_from((1, 3, 8, 15, 16, 17, 24, 40, 64)), st.integers(0, 2**32 - 1), st.sampled_from((0.0, 0.1)))
    def check(dim: int, seed: int, l2: float) -> None:
        random, spec = np.random.default_rng(seed), RowOptimizerSpec(kind=kind, lr=0.05, l2=l2)
        buffer = np.zeros((90, row_width(spec, dim)), np.float32)
        buffer[:, :dim] = random.normal(size=(90, dim))
        buffer[:, dim:] = first_state(spec, buffer[:, :dim])
        slots = random.permutation(90)[:60].astype(np.int32)
        gradients = random.normal(size=(60, dim)).astype(np.float32)
        bad = np.sort(random.permutation(60)[:3])
        gradients[bad, random.integers(0, dim, 3)] = (np.nan, -np.inf, LARGEST_GRADIENT)
        wanted, good = buffer.copy(), np.delete(np.arange(60), bad)
        with np.errstate(all="ignore"):
            wanted[slots[good]] = update_reference(spec, buffer[slots[good]], gradients[good])
        rejected = np.empty(60, np.int32)
        count = update_slots_kernel(buffer, slots, gradients, KIND[kind], hyper_array(spec), rejected, update_room(dim))
        assert rejected[:count].tolist() == bad.tolist()
        assert_same_bits(buffer, wanted)

    check()


def test_read_only_rows_take_their_slots() -> None:
    buffer, rows = np.zeros((5, 3), np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)
    rows.flags.writeable = False
    scatter_rows(buffer, np.array([4, 1], np.int32), rows)
    np.testing.assert_array_equal(buffer[[4, 1]], rows)
    assert not buffer[[0, 2, 3]].any()
