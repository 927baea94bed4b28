"""Layers with ReLU as one function, and the dot interaction as a module, against plain torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

from hetero.towers.interaction import DotInteraction
from hetero.towers.layers import MLP
from hetero.towers.relu_layers import aligned_rows

RELATIVE = 1e-5


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def random_leaf(*shape: int, seed: int, aligned: bool = False) -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    if aligned:
        values = aligned_rows(*shape).copy_(values)
    return values.requires_grad_()


def gradients(out: Tensor, leaves: Sequence[Tensor], *, seed: int) -> list[Tensor]:
    return list(torch.autograd.grad(out, leaves, random_leaf(*out.shape, seed=seed).detach()))


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(
        actual, expected, rtol=RELATIVE, atol=RELATIVE * float(expected.detach().abs().max() + 1e-30)
    )


@pytest.mark.parametrize("output", [None, 1])
@pytest.mark.parametrize(("rows", "inputs", "hidden"), [(131, 13, (40, 24, 16)), (64, 37, (32,)), (1, 5, (3, 2))])
@pytest.mark.parametrize("aligned", [True, False])
def test_values_and_gradients_equal_a_sequence_of_layers(
    rows: int, inputs: int, hidden: tuple[int, ...], output: int | None, aligned: bool
) -> None:
    torch.manual_seed(3)
    mlp = MLP(inputs, hidden, output=output)
    for parameter in mlp.parameters():
        nn.init.normal_(parameter, std=0.3)
    x = random_leaf(rows, inputs, seed=1, aligned=aligned)
    leaves = [x, *mlp.parameters()]
    found, expected = mlp(x), mlp.layers(x)
    assert "ReluLayers" in type(found.grad_fn).__name__
    close(found, expected)
    for ours, plain in zip(gradients(found, leaves, seed=2), gradients(expected, leaves, seed=2), strict=True):
        close(ours, plain)


@pytest.mark.parametrize(("inputs", "hidden", "output"), [(13, (40, 8), 1), (13, (16,), None), (37, (16, 8), None)])
def test_inputs_without_gradient(inputs: int, hidden: tuple[int, ...], output: int | None) -> None:
    mlp = MLP(inputs, hidden, output=output)
    x = random_leaf(131, inputs, seed=1).detach()
    found, expected = mlp(x), mlp.layers(x)
    close(found, expected)
    parameters = list(mlp.parameters())
    for ours, plain in zip(gradients(found, parameters, seed=2), gradients(expected, parameters, seed=2), strict=True):
        close(ours, plain)


def test_batches_without_rows() -> None:
    mlp = MLP(4, (8, 3), output=1)
    x = random_leaf(0, 4, seed=1)
    empty = mlp(x)
    assert empty.shape == (0, 1)
    for gradient in gradients(empty, list(mlp.parameters()), seed=1):
        assert not gradient.any()


@pytest.mark.parametrize(
    "options", [{"activation": "tanh"}, {"norm": "layer"}, {"dropout": 0.5}, {"output": 2}, {"hidden": ()}]
)
def test_other_layers_are_torchs(options: dict[str, object]) -> None:
    arguments: dict[str, object] = {"hidden": (8,), "output": 1, **options}
    mlp = MLP(4, arguments.pop("hidden"), **arguments)  # type: ignore[arg-type]
    mlp.eval()
    x = torch.randn(5, 4)
    found = mlp(x)
    assert "ReluLayers" not in type(found.grad_fn).__name__
    torch.testing.assert_close(found, mlp.layers(x), rtol=0, atol=0)


def test_under_autocast_products_are_bf16() -> None:
    mlp = MLP(16, (32,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert mlp(torch.randn(4, 16)).dtype is torch.bfloat16
    assert mlp(torch.randn(4, 16)).dtype is torch.float32


def in_bf16(mlp: MLP, x: Tensor, *, plain: bool) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out: Tensor = mlp.layers(x) if plain else mlp(x)
    return out.float()


def as_close_as_autocast(actual: Tensor, autocast: Tensor, exact: Tensor) -> None:
    """No further from float32 than twice what torch's autocast is, by the largest difference."""
    scale = float(exact.detach().abs().max()) + 1e-30
    off, autocast_off = (float((found - exact).detach().abs().max()) / scale for found in (actual, autocast))
    assert off <= 2 * autocast_off + 2**-8


@pytest.mark.parametrize("output", [None, 1])
@pytest.mark.parametrize(("rows", "inputs", "hidden"), [(131, 13, (40, 24, 16)), (64, 37, (32,)), (1, 5, (8,))])
@pytest.mark.parametrize("needs", [True, False])
def test_bf16_is_as_exact_as_autocast(
    rows: int, inputs: int, hidden: tuple[int, ...], output: int | None, needs: bool
) -> None:
    torch.manual_seed(3)
    mlp = MLP(inputs, hidden, output=output)
    x = random_leaf(rows, inputs, seed=1).requires_grad_(needs)
    leaves = [*([x] if needs else []), *mlp.parameters()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "ReluLayersBf16" in type(mlp(x).grad_fn).__name__
    found, autocast, exact = in_bf16(mlp, x, plain=False), in_bf16(mlp, x, plain=True), mlp.layers(x)
    as_close_as_autocast(found, autocast, exact)
    grads = [gradients(out, leaves, seed=2) for out in (found, autocast, exact)]
    for ours, casts, plain in zip(*grads, strict=True):
        assert ours.dtype is torch.float32
        as_close_as_autocast(ours, casts, plain)


def test_bf16_without_rows_and_with_sizes_the_kernels_do_not_take() -> None:
    mlp = MLP(4, (8, 16), output=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert mlp(random_leaf(0, 4, seed=1)).shape == (0, 1)
        odd = MLP(4, (6,), output=1)(random_leaf(3, 4, seed=1))
    assert odd.dtype is torch.bfloat16
    assert "ReluLayers" not in type(odd.grad_fn).__name__


@pytest.mark.usefixtures("threads")
def test_bf16_sums_do_not_depend_on_threads() -> None:
    mlp, x = MLP(13, (64, 32), output=1), random_leaf(999, 13, seed=1)
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        results.append(gradients(in_bf16(mlp, x, plain=False), list(mlp.parameters()), seed=2)[1::2])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)


def plain_interaction(block: Tensor, first: Tensor | None) -> Tensor:
    fields = block if first is None else torch.cat([first.unsqueeze(1), block], 1)
    row, column = torch.tril_indices(fields.shape[1], fields.shape[1], offset=-1)
    products = (fields[:, row] * fields[:, column]).sum(2)
    return products if first is None else torch.cat([first, products], 1)


@pytest.mark.parametrize("has_first", [True, False])
def test_interaction_equals_plain_torch(has_first: bool) -> None:
    block = random_leaf(33, 9, 8, seed=1)
    first = random_leaf(33, 8, seed=2) if has_first else None
    leaves = [leaf for leaf in (block, first) if leaf is not None]
    module = DotInteraction(9 + has_first)
    found, expected = module(block, first), plain_interaction(block, first)
    close(found, expected)
    for ours, plain in zip(gradients(found, leaves, seed=3), gradients(expected, leaves, seed=3), strict=True):
        close(ours, plain)


def test_interaction_takes_strided_inputs_and_bf16() -> None:
    block, first = random_leaf(10, 8, 4, seed=1), random_leaf(10, 4, seed=2)
    module = DotInteraction(9)
    turned = block.detach().transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(module(turned, first), module(block, first), rtol=0, atol=0)
    half = module(block, first.bfloat16())
    assert half.dtype is torch.float32
    torch.testing.assert_close(half, plain_interaction(block, first.bfloat16().float()), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("threads")
def test_interaction_bits_do_not_depend_on_threads() -> None:
    block, first = random_leaf(99, 26, 16, seed=1), random_leaf(99, 16, seed=2)
    module = DotInteraction(27)
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        out = module(block, first)
        results.append([out.detach(), *gradients(out, [block, first], seed=3)])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
