"""Matrix products by either library equal plain ones, on strided memory and split over threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from hetero.towers import products
from hetero.towers.products import multiply
from hetero.towers.relu_layers import aligned_rows


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def operands(rows: int, inner: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    left = aligned_rows(rows, inner).copy_(torch.randn(rows, inner, generator=generator))
    right = aligned_rows(columns, inner).copy_(torch.randn(columns, inner, generator=generator))
    return left, right.t()


@pytest.mark.parametrize("by_numpy", [True, False])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(100, 37, 19), (1, 5, 3), (0, 4, 2), (7, 0, 3)])
def test_both_libraries_equal_plain_products(
    monkeypatch: pytest.MonkeyPatch, by_numpy: bool, rows: int, inner: int, columns: int
) -> None:
    monkeypatch.setattr(products, "numpy_multiplies_better", lambda: by_numpy)
    left, right = operands(rows, inner, columns)
    expected = left.double() @ right.double()
    for out in (torch.full((rows, columns), 7.0), aligned_rows(rows, columns).fill_(7.0)):
        assert multiply(left, right, out=out) is out
        np.testing.assert_allclose(out.numpy(), expected.numpy(), rtol=1e-5, atol=1e-5)
    turned = multiply(right.t(), left.t(), out=torch.empty(columns, rows))
    np.testing.assert_allclose(turned.numpy(), expected.t().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("threads")
def test_rows_are_split_over_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "numpy_multiplies_better", lambda: True)
    left, right = operands(101, 40, 24)
    results = []
    for count in (1, 3):
        torch.set_num_threads(count)
        results.append(multiply(left, right, out=torch.empty(101, 24)))
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)
