"""The mix: kernel and numpy against published values, a bijection, every bit reaching every bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels.mix import GOLDEN, mix64, mix64_reference
from tests.support.crafted_keys import unmix64

EXTREMES = [0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
keys = st.one_of(st.sampled_from(EXTREMES), st.integers(0, 2**64 - 1))


def reference(value: int) -> int:
    return int(mix64_reference(np.array([value], np.uint64))[0])


def test_published_outputs_of_splitmix64() -> None:
    """The generator of Steele et al. with seed 1234567 is the mix of seed + n * GOLDEN."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    states = np.uint64(1234567) + np.arange(1, 6, dtype=np.uint64) * GOLDEN
    assert mix64_reference(states).tolist() == published
    assert [int(mix64(state)) for state in states] == published


@settings(max_examples=50, deadline=None)
@given(keys)
def test_kernel_and_numpy_agree_and_can_be_undone(value: int) -> None:
    mixed = reference(value)
    assert int(mix64(np.uint64(value))) == mixed
    assert unmix64(mixed) == value
    assert reference(unmix64(value)) == value


def test_every_input_bit_flips_every_output_bit_about_half_the_time() -> None:
    values = np.random.default_rng(0).integers(0, 2**64, 4000, dtype=np.uint64)
    mixed = mix64_reference(values)
    for bit in range(64):
        flipped = mixed ^ mix64_reference(values ^ np.uint64(1 << bit))
        for out in range(64):
            share = float(((flipped >> np.uint64(out)) & np.uint64(1)).mean())
            assert 0.45 < share < 0.55, (bit, out, share)


def test_the_reference_leaves_its_input_alone() -> None:
    values = np.arange(5, dtype=np.uint64)
    mix64_reference(values)
    np.testing.assert_array_equal(values, np.arange(5, dtype=np.uint64))
