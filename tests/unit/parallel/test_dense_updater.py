"""The dense update: fused optimizers equal torch's plain ones, and gradients that are no numbers change nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from hetero.errors import JobError
from hetero.observe.spans import SpanClock
from hetero.parallel.dense import OPTIMIZERS, DenseUpdater
from hetero.parallel.group import SoleTower
from hetero.records import TowerSpec

LR, DECAY = 0.05, 0.01
PLAIN: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=LR, weight_decay=DECAY, foreach=False),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=LR, weight_decay=DECAY, eps=1e-8, foreach=False),
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=LR, weight_decay=DECAY, foreach=False),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=LR, weight_decay=DECAY, foreach=False),
}


def small() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(7, 13), nn.ReLU(), nn.Linear(13, 1))


def updater(module: nn.Module, optimizer: str) -> DenseUpdater:
    spec = TowerSpec(name="any", optimizer=optimizer, lr=LR, weight_decay=DECAY)
    return DenseUpdater(module, spec, group=SoleTower(), clock=SpanClock())


def backward(module: nn.Module, step: int, *, scale: float = 1.0) -> torch.Tensor:
    x = torch.randn(20, 7, generator=torch.Generator().manual_seed(step))
    loss: torch.Tensor = scale * (module(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fused_equals_plain(name: str) -> None:
    ours, plain = small(), small()
    update, optimizer = updater(ours, name), PLAIN[name](plain)
    before = [parameter.detach().clone() for parameter in ours.parameters()]
    for step in range(20):
        outcome = update.step(backward(ours, step))
        optimizer.zero_grad()
        loss = backward(plain, step)
        optimizer.step()
        assert outcome.rejected == ()
        assert outcome.loss == pytest.approx(float(loss), rel=1e-5)
    for mine, other, first in zip(ours.parameters(), plain.parameters(), before, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6)
        assert not torch.equal(mine, first)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_no_number_changes_nothing_and_is_named(value: float) -> None:
    module = small()
    update = updater(module, "adam")
    loss = backward(module, 1)
    last = list(module.parameters())[2]
    assert last.grad is not None
    last.grad[0, 3] = value
    before = [parameter.detach().clone() for parameter in module.parameters()]
    assert update.step(loss).rejected == ("2.weight",)
    for parameter, kept in zip(module.parameters(), before, strict=True):
        assert torch.equal(parameter, kept)


def test_large_gradients_whose_squares_overflow_are_applied() -> None:
    module = small()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    assert updater(module, "sgd").step(backward(module, 1, scale=1e25)).rejected == ()
    assert not torch.equal(next(module.parameters()), before[0])


def test_an_unknown_optimizer_is_refused_with_the_nearest() -> None:
    with pytest.raises(JobError, match="did you mean `adagrad`"):
        updater(small(), "adagradd")
