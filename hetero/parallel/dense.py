"""Dense parameters, replicated: gradients are summed over towers, then every tower takes the same step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import nn

from hetero.errors import DataError, JobError
from hetero.observe.spans import Span, SpanClock
from hetero.parallel.group import TowerGroup
from hetero.records import TowerSpec

OPTIMIZERS = ("sgd", "adagrad", "adam", "adamw")
_ADAGRAD_EPS = 1e-8
_STEP = "step"
"""Of an optimizer's tensors the one that torch keeps in host memory, but for its fused forms elsewhere."""


def _optimizer(spec: TowerSpec, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The job's dense optimizer. On the CPU one fused kernel a parameter; elsewhere torch's choice."""
    fused = True if parameters[0].device.type == "cpu" else None
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: torch.optim.SGD(parameters, lr=spec.lr, weight_decay=spec.weight_decay, fused=fused),
        "adagrad": lambda: torch.optim.Adagrad(
            parameters, lr=spec.lr, weight_decay=spec.weight_decay, eps=_ADAGRAD_EPS, fused=fused
        ),
        "adam": lambda: torch.optim.Adam(parameters, lr=spec.lr, weight_decay=spec.weight_decay, fused=fused),
        "adamw": lambda: torch.optim.AdamW(parameters, lr=spec.lr, weight_decay=spec.weight_decay, fused=fused),
    }
    return makers[spec.optimizer]()


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
    """Sums gradients, loss and flags over the group in one collective and steps the optimizer.

    Raises JobError for an optimizer that does not exist.
    """

    def __init__(self, module: nn.Module, spec: TowerSpec, *, group: TowerGroup, clock: SpanClock) -> None:
        if spec.optimizer not in OPTIMIZERS:
            near = get_close_matches(spec.optimizer, OPTIMIZERS, n=1)
            hint = f"; did you mean `{near[0]}`?" if near else ""
            raise JobError(
                f"tower.optimizer.name: unknown name `{spec.optimizer}`{hint} (one of {', '.join(OPTIMIZERS)})"
            )
        self._named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self._group = group
        self._clock = clock
        parameters = [parameter for _, parameter in self._named]
        self._optimizer = _optimizer(spec, parameters) if parameters else None
        size = sum(parameter.numel() for parameter in parameters)
        device = parameters[0].device if parameters else torch.device("cpu")
        self._flat = torch.zeros(size + 2, dtype=torch.float32, device=device)

    def step(self, loss: torch.Tensor, *, flag: float = 0.0) -> DenseStep:
        """Reduce, check, update. loss: this tower's share of the weighted mean (scalar). flag: for all to hear."""
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
        rejected: tuple[str, ...] = ()
        if _all_finite(flat[:start]):
            self._update(flat)
        else:
            rejected = self._not_finite(flat)
        if self._optimizer is not None:
            self._optimizer.zero_grad(set_to_none=True)
        return DenseStep(loss=total, rejected=rejected, flags=flags)

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of the optimizer's tensors, by `<parameter>/<name of the tensor>`."""
        if self._optimizer is None:
            return {}
        return {
            f"{name}/{key}": value.detach().clone()
            for name, parameter in self._named
            for key, value in self._optimizer.state.get(parameter, {}).items()
        }

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on with the tensors that `state` gave. Raises DataError when they are not of these parameters."""
        found: dict[str, dict[str, torch.Tensor]] = {}
        for path, value in state.items():
            name, _, key = path.rpartition("/")
            found.setdefault(name, {})[key] = value
        strange = sorted(set(found) - {name for name, _ in self._named})
        if strange:
            raise DataError(f"dense optimizer: the snapshot has state of {strange[0]}, the tower has no such parameter")
        for name, parameter in self._named:
            if self._optimizer is not None and name in found:
                self._optimizer.state[parameter] = {
                    key: value.clone() if key == _STEP else value.to(parameter.device, copy=True)
                    for key, value in found[name].items()
                }

    def _update(self, flat: torch.Tensor) -> None:
        start = 0
        for _, parameter in self._named:
            stop = start + parameter.numel()
            parameter.grad = flat[start:stop].view_as(parameter)
            start = stop
        if self._optimizer is not None:
            self._optimizer.step()

    def _not_finite(self, flat: torch.Tensor) -> tuple[str, ...]:
        names, start = [], 0
        for name, parameter in self._named:
            stop = start + parameter.numel()
            if not bool(torch.isfinite(flat[start:stop]).all()):
                names.append(name)
            start = stop
        return tuple(names)
