"""Dense parameters, replicated: gradients are summed over towers, then every tower takes the same step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from hetero.errors import DataError, JobError
from hetero.observe.spans import Span, SpanClock
from hetero.parallel.group import TowerGroup
from hetero.parallel.learning_rate import learning_rate
from hetero.records import PartSpec, TowerSpec

OPTIMIZERS = ("sgd", "adagrad", "adam", "adamw")
_ADAGRAD_EPS = 1e-8
_STEPS = "/steps"
"""Name of the count of steps in the optimizer's state, which learning rates follow; parameters' names are not empty."""
_STEP = "step"
"""Of an optimizer's tensors the one that torch keeps in host memory, but for its fused forms elsewhere."""


@dataclass(frozen=True, slots=True)
class OptimizerShare:
    """Parameters that one optimizer steps. part: what it is of, None for the rest of the tower."""

    optimizer: torch.optim.Optimizer
    parameters: Sequence[torch.Tensor]
    part: PartSpec | None

    @staticmethod
    def of(parameters: Sequence[torch.Tensor], spec: TowerSpec | PartSpec) -> OptimizerShare:
        """With a new optimizer. A part's weight decay is of its matrices alone."""
        if not isinstance(spec, PartSpec):
            groups = [{"params": parameters, "weight_decay": spec.weight_decay}]
            return OptimizerShare(_optimizer(spec.optimizer, groups, lr=spec.lr), parameters, None)
        matrices, vectors = ([p for p in parameters if (p.ndim >= 2) is two] for two in (True, False))
        groups = [{"params": matrices, "weight_decay": spec.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        return OptimizerShare(
            _optimizer(spec.optimizer, [g for g in groups if g["params"]], lr=spec.lr), parameters, spec
        )

    def step(self, number: int) -> None:
        """Apply the parameters' gradients as the run's step `number`."""
        if self.part is not None:
            if self.part.clip is not None:
                clip_grad_norm_(self.parameters, self.part.clip)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(self.part, number)
        self.optimizer.step()


def _optimizer(name: str, groups: list[dict[str, Any]], *, lr: float) -> torch.optim.Optimizer:
    """A dense optimizer. On the CPU one fused kernel a parameter; elsewhere torch's choice."""
    fused = True if groups[0]["params"][0].device.type == "cpu" else None
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: torch.optim.SGD(groups, lr=lr, fused=fused),
        "adagrad": lambda: torch.optim.Adagrad(groups, lr=lr, eps=_ADAGRAD_EPS, fused=fused),
        "adam": lambda: torch.optim.Adam(groups, lr=lr, fused=fused),
        "adamw": lambda: torch.optim.AdamW(groups, lr=lr, fused=fused),
    }
    return makers[name]()


def _all_finite(values: torch.Tensor) -> bool:
    """Whether all of `values` [n] are numbers.

    Their dot product with themselves takes one pass and is finite only when they all are; the look at each, which takes
    several, is for when it is not: squares of large numbers overflow too.
    """
    return bool(torch.isfinite(torch.dot(values, values))) or bool(torch.isfinite(values).all())


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseStep:
    """loss: weighted mean over all towers' rows. rejected: parameters whose gradient was not finite; then no
    parameter was changed in this step. flags: sum of what the towers flagged."""

    loss: float
    rejected: tuple[str, ...]
    flags: float = 0.0


class DenseUpdater:
    """Sums gradients, loss and flags over the group in one collective and steps the optimizers: the tower's, those
    of its parts, whose learning rates follow the number of the step.

    Raises JobError for an optimizer that does not exist.
    """

    def __init__(self, module: nn.Module, spec: TowerSpec, *, group: TowerGroup, clock: SpanClock) -> None:
        _check_name(spec.optimizer, path="tower.optimizer.name")
        for number, part in enumerate(spec.parts):
            _check_name(part.optimizer, path=f"tower.parts[{number}].optimizer.name")
        self._named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self._group = group
        self._clock = clock
        parameters = [parameter for _, parameter in self._named]
        self._shares = _shares(self._named, spec)
        self._steps = 0
        size = sum(parameter.numel() for parameter in parameters)
        device = parameters[0].device if parameters else torch.device("cpu")
        self._flat = torch.zeros(size + 2, dtype=torch.float32, device=device)

    def step(self, loss: torch.Tensor, *, flag: float = 0.0, veto: tuple[str, ...] = ()) -> DenseStep:
        """Reduce, check, update. loss: this tower's share of the weighted mean (scalar). flag: for all to hear. veto:
        what lies elsewhere with a gradient that is not finite, on all towers alike: nothing is changed then."""
        flat = self._flat
        start = 0
        for _, parameter in self._named:
            stop = start + parameter.numel()
            if parameter.grad is None:
                flat[start:stop] = 0
            else:
                flat[start:stop] = parameter.grad.reshape(-1)
            start = stop
        flat[start] = loss.detach()
        flat[start + 1] = flag
        with self._clock.span(Span.WAIT_TOWERS):
            self._group.sum_(flat)
        total, flags = flat[start:].tolist()
        rejected = veto
        if not _all_finite(flat[:start]):
            rejected += self._not_finite(flat)
        if not rejected:
            self._update(flat)
        self._steps += 1
        for _, parameter in self._named:
            parameter.grad = None
        return DenseStep(loss=total, rejected=rejected, flags=flags)

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of the optimizers' tensors, by `<parameter>/<name of the tensor>`; with parts, the steps done."""
        steps = {_STEPS: torch.tensor(self._steps)} if any(share.part for share in self._shares) else {}
        return steps | {
            f"{name}/{key}": value.detach().clone()
            for name, parameter, share in self._with_shares()
            for key, value in share.optimizer.state.get(parameter, {}).items()
        }

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on with the tensors that `state` gave. Raises DataError when they are not of these parameters."""
        found: dict[str, dict[str, torch.Tensor]] = {}
        for path, value in state.items():
            if path == _STEPS:
                self._steps = int(value)
                continue
            name, _, key = path.rpartition("/")
            found.setdefault(name, {})[key] = value
        strange = sorted(set(found) - {name for name, _ in self._named})
        if strange:
            raise DataError(f"dense optimizer: the snapshot has state of {strange[0]}, the tower has no such parameter")
        for name, parameter, share in self._with_shares():
            if name in found:
                share.optimizer.state[parameter] = {
                    key: value.clone() if key == _STEP else value.to(parameter.device, copy=True)
                    for key, value in found[name].items()
                }

    def _with_shares(self) -> Iterator[tuple[str, nn.Parameter, OptimizerShare]]:
        owners = {id(parameter): share for share in self._shares for parameter in share.parameters}
        for name, parameter in self._named:
            yield name, parameter, owners[id(parameter)]

    def _update(self, flat: torch.Tensor) -> None:
        start = 0
        for _, parameter in self._named:
            stop = start + parameter.numel()
            parameter.grad = flat[start:stop].view_as(parameter)
            start = stop
        for share in self._shares:
            share.step(self._steps)

    def _not_finite(self, flat: torch.Tensor) -> tuple[str, ...]:
        names, start = [], 0
        for name, parameter in self._named:
            stop = start + parameter.numel()
            if not bool(torch.isfinite(flat[start:stop]).all()):
                names.append(name)
            start = stop
        return tuple(names)


def _shares(named: Sequence[tuple[str, nn.Parameter]], spec: TowerSpec) -> list[OptimizerShare]:
    """Who steps which parameters: the tower's optimizer what no part has. None without parameters."""
    owners = {name: next((p for p in spec.parts if name.startswith(f"{p.name}.")), None) for name, _ in named}
    wanted: list[PartSpec | None] = [None, *spec.parts]
    members = [(part, [parameter for name, parameter in named if owners[name] is part]) for part in wanted]
    return [OptimizerShare.of(parameters, spec if part is None else part) for part, parameters in members if parameters]


def _check_name(optimizer: str, *, path: str) -> None:
    if optimizer not in OPTIMIZERS:
        near = get_close_matches(optimizer, OPTIMIZERS, n=1)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        raise JobError(f"{path}: unknown name `{optimizer}`{hint} (one of {', '.join(OPTIMIZERS)})")
