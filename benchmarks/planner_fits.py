"""Fits of the planner's free parameters to published figures: few parameters, all named, by plain scans."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.planner_published import BERT_LARGE, BERT_LARGE_MB, ERNIE_230B, STRATEGIES, Point, v100s
from hetero.hardware.devices import link
from hetero.planning.memory import state_memory
from hetero.planning.mesh import DeviceGrid, Mesh
from hetero.planning.mesh_plan import Assumptions, MeshPlan, ShardingStage
from hetero.planning.shape import Recompute
from hetero.planning.step_time import StepTime, estimated

_MIB = 1 << 20
ROUNDS = 16
"""Micro-batches / pipeline degree where a source gives none: bubbles of 1F1B take 6%."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """parameters: fitted ones by name. errors: predicted / published - 1, by case."""

    parameters: Mapping[str, float]
    predicted: Mapping[str, float]
    errors: Mapping[str, float]

    @property
    def worst(self) -> float:
        return max(map(abs, self.errors.values()))


def bert_large_curve() -> Fit:
    """One parameter: what a card holds beside sharded state (activations, workspace), the same at every width."""

    def state_mib(cards: int) -> float:
        plan = MeshPlan(shape=BERT_LARGE, grid=v100s(cards), mesh=Mesh(shard=cards), sharding=ShardingStage.PARAMETERS)
        return state_memory(plan, BERT_LARGE.parameters).state / _MIB

    def fitted(beside: float) -> Fit:
        predicted = {f"{cards} cards": state_mib(cards) + beside for cards in BERT_LARGE_MB}
        published = {f"{cards} cards": value for cards, value in BERT_LARGE_MB.items()}
        return _fit({"MiB beside the state": beside}, predicted, published)

    return _best(fitted(float(beside)) for beside in range(2000, 5000, 10))


def gpt3_points(points: Sequence[Point], *, exposed: float | None = None) -> Fit:
    """Two parameters: efficiency of matrix products, and the share of exchange that nothing hides (or a given one)."""

    def fitted(efficiency: float, share: float) -> Fit:
        assumptions = Assumptions(matrix_efficiency=efficiency, exposed=share)
        predicted = {point.name: _tflops(point, assumptions) for point in points}
        parameters = {"efficiency": efficiency} | ({} if exposed is not None else {"exposed": share})
        return _fit(parameters, predicted, {point.name: point.tflops for point in points})

    shares = [each / 20 for each in range(21)] if exposed is None else [exposed]
    return _best(itertools.starmap(fitted, itertools.product([each / 100 for each in range(40, 81)], shares)))


def _tflops(point: Point, assumptions: Assumptions) -> float:
    time = estimated(
        MeshPlan(
            shape=point.shape,
            grid=point.grid,
            mesh=point.mesh,
            micro_batches=ROUNDS * point.mesh.pp,
            recompute=Recompute.FULL,
            assumptions=assumptions,
        )
    )
    return time.model_flops * 4 / 3 / time.total_s / point.grid.devices / 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """What decides the rate of a 230B strategy. tp8_efficiency: of matrix products cut in 8, / cut in 4."""

    efficiency: float
    micro_batches: float
    exposed: float = 1.0
    tp8_efficiency: float = 1.0
    inside: float = 1.0
    between: float = 1.0

    def step(self, name: str) -> StepTime:
        return estimated(self.plan(name))

    def tokens_per_s(self, name: str) -> float:
        return self.step(name).tokens_per_s

    def plan(self, name: str) -> MeshPlan:
        mesh = STRATEGIES[name]
        cut = self.tp8_efficiency if mesh.tp == 8 else 1.0
        return MeshPlan(
            shape=ERNIE_230B,
            grid=self._grid(mesh.size),
            mesh=mesh,
            micro_batches=round(self.micro_batches),
            recompute=Recompute.FULL,
            assumptions=Assumptions(matrix_efficiency=self.efficiency * cut, exposed=self.exposed),
        )

    def _grid(self, devices: int) -> DeviceGrid:
        grid = v100s(devices)
        return replace(
            grid,
            inside=link("nvlink2").shared_by(1 / self.inside),
            between=link("8x-ib-edr").shared_by(1 / self.between),
        )


def solve(of: Callable[[float], float], target: float, *, low: float, high: float) -> float:
    """Where a rising or falling function takes a value, by halving. Raises ValueError when it does not in between."""
    rising = of(high) > of(low)
    if not min(of(low), of(high)) <= target <= max(of(low), of(high)):
        raise ValueError(f"{target} is not between {of(low):.4g} and {of(high):.4g}")
    for _ in range(60):
        middle = (low + high) / 2
        if (of(middle) < target) == rising:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _fit(parameters: Mapping[str, float], predicted: Mapping[str, float], published: Mapping[str, float]) -> Fit:
    errors = {name: predicted[name] / value - 1 for name, value in published.items()}
    return Fit(parameters=parameters, predicted=predicted, errors=errors)


def _best(fits: Iterable[Fit]) -> Fit:
    return min(fits, key=lambda fit: fit.worst)
