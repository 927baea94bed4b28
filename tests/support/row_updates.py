"""Cases for row optimizers: rows as they begin and a few steps of gradients, ordinary ones and extreme ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from hetero.optim.definition import first_state
from hetero.records import F32, RowOptimizer, RowOptimizerSpec

DIMS = (1, 2, 3, 5, 16, 17, 64)
_QUIET_NAN = 0x7FC00000


@dataclass(frozen=True, slots=True)
class UpdateCase:
    """rows float32 [n, W] before the first step; gradients: per step float32 [n, E]."""

    spec: RowOptimizerSpec
    rows: F32
    gradients: tuple[F32, ...]


def bits(values: F32) -> np.ndarray:
    """The bits of float32 values, all NaN alike, so that -0 and 0 differ and NaN equals itself."""
    return np.where(np.isnan(values), np.uint32(_QUIET_NAN), np.ascontiguousarray(values).view(np.uint32))


def assert_same_bits(actual: F32, wanted: F32) -> None:
    assert actual.dtype == wanted.dtype == np.float32
    np.testing.assert_array_equal(bits(actual), bits(wanted))


def specs(kind: RowOptimizer) -> st.SearchStrategy[RowOptimizerSpec]:
    return st.builds(
        RowOptimizerSpec,
        kind=st.just(kind),
        lr=st.sampled_from([0.05, 0.3, 1e-4, 7.0]),
        eps=st.sampled_from([1e-8, 1e-3, 0.0]),
        initial_accumulator=st.sampled_from([0.0, 0.1, 2.5]),
        beta1=st.sampled_from([0.9, 0.0, 0.5]),
        beta2=st.sampled_from([0.999, 0.9]),
        l1=st.sampled_from([0.0, 0.01, 1.5]),
        l2=st.sampled_from([0.0, 1e-3, 0.7]),
        beta=st.sampled_from([1.0, 0.0, 0.25]),
    )


@st.composite
def update_cases(draw: st.DrawFn, kind: RowOptimizer) -> UpdateCase:
    """Magnitudes of gradients and weights from 1e-20 to 1e20; zeros among the gradients."""
    spec, dim, rows = draw(specs(kind)), draw(st.sampled_from(DIMS)), draw(st.integers(1, 9))
    steps, widest = draw(st.integers(1, 4)), draw(st.sampled_from([0, 2, 20]))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def floats() -> F32:
        scale = 10.0 ** random.uniform(-widest, widest, (rows, dim))
        return (random.normal(size=(rows, dim)) * scale * (random.random((rows, dim)) > 0.1)).astype(np.float32)

    weights = floats()
    with np.errstate(all="ignore"):
        start = np.concatenate([weights, first_state(spec, weights)], axis=1)
    return UpdateCase(spec, start, tuple(floats() for _ in range(steps)))
