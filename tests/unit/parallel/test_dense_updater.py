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
from hetero.records import PartSpec, TowerSpec
from hetero.records.mesh import LrSchedule

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
        assert outcome.loss == pytest.approx(float(loss.detach()), rel=1e-5)
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


PARTS = (
    PartSpec(
        name="0", optimizer="adamw", lr=0.02, weight_decay=0.5, warmup=3, schedule=LrSchedule.LINEAR, steps=9, clip=0.3
    ),
    PartSpec(name="2", frozen=True),
)


class Plain:
    """Parts by hand: the first layer by clipped AdamW with a schedule, the rest by SGD."""

    def __init__(self, module: nn.Sequential) -> None:
        self.module = module
        first = module[0]
        groups = [{"params": [first.weight], "weight_decay": 0.5}, {"params": [first.bias], "weight_decay": 0.0}]
        self.adamw = torch.optim.AdamW(groups, lr=0.02, foreach=False)
        self.sgd = torch.optim.SGD(module[4].parameters(), lr=LR, weight_decay=DECAY)

    def step(self, number: int, lr: float) -> float:
        loss = backward(self.module, number)
        torch.nn.utils.clip_grad_norm_(self.module[0].parameters(), 0.3)
        for group in self.adamw.param_groups:
            group["lr"] = lr
        self.adamw.step()
        self.sgd.step()
        self.module.zero_grad()
        return float(loss.detach())


def three_layers() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(7, 13), nn.ReLU(), nn.Linear(13, 13), nn.ReLU(), nn.Linear(13, 1))


def with_parts(module: nn.Module) -> DenseUpdater:
    spec = TowerSpec(name="any", optimizer="sgd", lr=LR, weight_decay=DECAY, parts=PARTS)
    for parameter in module[2].parameters():  # type: ignore[index]
        parameter.requires_grad_(False)
    return DenseUpdater(module, spec, group=SoleTower(), clock=SpanClock())


def test_parts_have_optimizers_schedules_and_clips_of_their_own_and_go_on_from_their_state() -> None:
    ours, plain = three_layers(), Plain(three_layers())
    update = with_parts(ours)
    rates = [0.02 / 3, 0.04 / 3, 0.02, *(0.02 * (1 - done / 6) for done in range(6)), 0.0, 0.0]
    for step, lr in enumerate(rates):
        if step == 5:  # another process takes over
            state, taken = update.state(), three_layers()
            taken.load_state_dict(ours.state_dict())
            ours, update = taken, with_parts(taken)
            update.restore(state)
        outcome = update.step(backward(ours, step))
        assert outcome.loss == pytest.approx(plain.step(step, lr), rel=1e-5)
    for mine, other in zip(ours.parameters(), plain.module.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
    for mine, first in zip(ours[2].parameters(), three_layers()[2].parameters(), strict=True):
        assert torch.equal(mine, first)


def test_an_unknown_optimizer_of_a_part_is_refused() -> None:
    spec = TowerSpec(name="any", parts=(PartSpec(name="0", optimizer="adan"),))
    with pytest.raises(JobError, match=r"tower.parts\[0\].optimizer.name: unknown name `adan`; did you mean `adam`"):
        DenseUpdater(small(), spec, group=SoleTower(), clock=SpanClock())
