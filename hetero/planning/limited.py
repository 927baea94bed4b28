"""Cheapest paths through a chain whose steps take nodes of several kinds, each kind limited. Exact, or says it is not.

A step (start, stop, kind) takes nodes[kind, start, stop] nodes. Without limits: dynamic programming from the end. With
limits (a resource-constrained shortest path): Lagrange multipliers raise the prices of scarce kinds and bound what any
path costs, steps that no path below the best one found can have are struck out, and what is left is searched in order
of its bound (A*), where a partial path that another one beats in every kind is dropped.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from hetero.planning.segments import NEVER
from hetero.records.arrays import F64, I64

MOST_PARTIAL_PATHS = 1_000
"""How many partial paths are extended before the search gives up."""
_MOST_ROUNDS = 40
_KEPT_BOUNDS = 4
_RAISES = (1.005, 1.01, 1.02, 1.03, 1.05, 1.08, 1.12, 1.2, 1.4, 2.0, 4.0)
_HOPED = 1.05
_SHORT = 12
"""Chains up to this length are searched at once; a cheap path first would take longer than it saves."""
_TINY = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """steps: (start, stop, kind, nodes). used: int64 [kinds]."""

    steps: tuple[tuple[int, int, int, int], ...]
    used: I64
    cost: float

    def fits_in(self, limits: I64) -> bool:
        return bool((self.used <= limits).all())


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """path: the cheapest found within the limits. proven: no cheaper one exists. bound: none costs less than this."""

    path: Path | None
    proven: bool
    bound: float


def cheapest_path(nodes: I64, prices: F64) -> Path | None:
    """Without limits. None when some task cannot be placed at all."""
    to_go, choice = _to_go(nodes, prices)
    return _walk(nodes, prices, choice) if np.isfinite(to_go[0]) else None


def _to_go(nodes: I64, prices: F64) -> tuple[F64, I64]:
    """(least cost of all tasks from `start` on, best (kind, stop) there)."""
    count = nodes.shape[1] - 1
    cost = _costs(nodes, prices)
    to_go = np.full(count + 1, np.inf)
    to_go[count] = 0.0
    choice = np.zeros((count, 2), dtype=np.int64)
    for start in range(count - 1, -1, -1):
        whole = cost[:, start, start + 1 :] + to_go[None, start + 1 :]
        kind, step = divmod(int(np.argmin(whole)), count - start)
        choice[start] = kind, start + 1 + step
        to_go[start] = whole[kind, step]
    return to_go, choice


def _so_far(nodes: I64, prices: F64) -> F64:
    """Least cost of all tasks before `stop`."""
    count = nodes.shape[1] - 1
    cost = _costs(nodes, prices)
    so_far = np.full(count + 1, np.inf)
    so_far[0] = 0.0
    for stop in range(1, count + 1):
        so_far[stop] = (cost[:, :stop, stop] + so_far[None, :stop]).min()
    return so_far


def _costs(nodes: I64, prices: F64) -> F64:
    costs: F64 = np.where(nodes < NEVER, nodes * prices[:, None, None], np.inf)
    return costs


def _walk(nodes: I64, prices: F64, choice: I64) -> Path:
    steps, start = [], 0
    used = np.zeros(len(prices), dtype=np.int64)
    while start < len(choice):
        kind, stop = (int(each) for each in choice[start])
        took = int(nodes[kind, start, stop])
        steps.append((start, stop, kind, took))
        used[kind] += took
        start = stop
    return Path(steps=tuple(steps), used=used, cost=float(prices @ used))


@dataclass(frozen=True, slots=True)
class _Bound:
    """For all paths: cost >= (prices + multipliers) @ used + to_go[start] - multipliers @ limits."""

    multipliers: F64
    to_go: F64
    of_all: float


def cheapest_within(nodes: I64, prices: F64, limits: I64) -> Found:
    """The cheapest path that takes at most limits[kind] nodes of each kind."""
    bounds, best = _bounds(nodes, prices, limits)
    if nodes.shape[1] > _SHORT and (best is None or best.cost > bounds[0].of_all * (1 + _TINY)):
        best = _dearer(nodes, prices, limits, bounds, best)
    if best is not None:
        nodes = _without_useless(nodes, prices, limits, bounds[0], best.cost)
    return _best_first(nodes, prices, limits, bounds, best)


def _bounds(nodes: I64, prices: F64, limits: I64) -> tuple[list[_Bound], Path | None]:
    """Bounds by subgradient steps on the multipliers, the strongest first, and the cheapest path met that fits."""
    multipliers = np.zeros(len(prices))
    kept: list[_Bound] = []
    best: Path | None = None
    strongest = -np.inf
    for _ in range(min(_MOST_ROUNDS, 8 + nodes.shape[1])):
        to_go, choice = _to_go(nodes, prices + multipliers)
        path = _walk(nodes, prices, choice)
        kept.append(_Bound(multipliers.copy(), to_go, float(to_go[0] - multipliers @ limits)))
        strongest = max(strongest, kept[-1].of_all)
        if path.fits_in(limits) and (best is None or path.cost < best.cost):
            best = path
        if best is not None and best.cost <= strongest * (1 + _TINY):
            break
        excess = (path.used - limits).astype(np.float64)
        # Polyak's step towards what a path within the limits may cost: a little above the strongest bound.
        hoped = min(np.inf if best is None else best.cost, strongest * _HOPED)
        multipliers = np.maximum(
            0.0, multipliers + (hoped - kept[-1].of_all) / max(float(excess @ excess), 1.0) * excess
        )
    kept.sort(key=lambda bound: -bound.of_all)
    plain = next(bound for bound in kept if not bound.multipliers.any())
    return [*kept[:_KEPT_BOUNDS], plain], best


def _without_useless(nodes: I64, prices: F64, limits: I64, bound: _Bound, most: float) -> I64:
    """Strike out steps through which every path costs more than `most`."""
    raised = prices + bound.multipliers
    through = _so_far(nodes, raised)[None, :, None] + _costs(nodes, raised) + bound.to_go[None, None, :]
    useless = ~(through - bound.multipliers @ limits <= most * (1 + _TINY))
    return np.where(useless, NEVER, nodes)


@dataclass(frozen=True, slots=True, order=True)
class _Partial:
    """A path over the tasks before `start`. bound: the least it costs in the end; order: the furthest first."""

    bound: float
    order: int
    start: int = field(compare=False)
    used: I64 = field(compare=False)
    steps: tuple[tuple[int, int, int, int], ...] = field(compare=False)


def _dearer(nodes: I64, prices: F64, limits: I64, bounds: list[_Bound], best: Path | None) -> Path | None:
    """The cheapest path met while scarce kinds are made dearer step by step, each by itself too, until paths fit."""
    for bound in bounds:
        for kinds in (bound.multipliers > 0, *np.eye(len(prices), dtype=bool)):
            for raise_by in _RAISES:
                raised = prices + bound.multipliers * np.where(kinds, raise_by, 1.0)
                _, choice = _to_go(nodes, raised)
                path = _walk(nodes, prices, choice)
                if path.fits_in(limits):
                    best = path if best is None or path.cost < best.cost else best
                    break
    return best


def _extended(
    nodes: I64, prices: F64, limits: I64, bounds: list[_Bound], partial: _Partial, most: float
) -> list[_Partial]:
    """The partial paths one step further."""
    following = []
    for bound, kind, stop, took in _steps(nodes, prices, limits, bounds, partial, most):
        used = partial.used.copy()
        used[kind] += took
        step = (partial.start, stop, kind, took)
        following.append(_Partial(bound, -stop, stop, used, (*partial.steps, step)))
    return following


def _best_first(nodes: I64, prices: F64, limits: I64, bounds: list[_Bound], best: Path | None) -> Found:
    partials = [_Partial(bounds[0].of_all, 0, 0, np.zeros(len(limits), dtype=np.int64), ())]
    seen: dict[int, list[I64]] = {}
    least = bounds[0].of_all
    for _ in range(MOST_PARTIAL_PATHS):
        if not partials or (best is not None and partials[0].bound >= best.cost * (1 - _TINY)):
            return Found(path=best, proven=True, bound=np.inf if best is None else best.cost)
        partial = heapq.heappop(partials)
        least = partial.bound
        if partial.start == nodes.shape[1] - 1:
            path = Path(steps=partial.steps, used=partial.used, cost=float(prices @ partial.used))
            return Found(path=path, proven=True, bound=path.cost)
        if any((other <= partial.used).all() for other in seen.get(partial.start, ())):
            continue
        seen.setdefault(partial.start, []).append(partial.used)
        most = np.inf if best is None else best.cost
        for following in _extended(nodes, prices, limits, bounds, partial, most):
            heapq.heappush(partials, following)
    return Found(path=best, proven=False, bound=least)


def _steps(
    nodes: I64, prices: F64, limits: I64, bounds: list[_Bound], partial: _Partial, most: float
) -> list[tuple[float, int, int, int]]:
    """(bound, kind, stop, nodes) of each step that fits and may lead to a path cheaper than `most`."""
    took = nodes[:, partial.start, :]
    least = np.full(took.shape, -np.inf)
    for bound in bounds:
        raised = prices + bound.multipliers
        before = raised @ partial.used - bound.multipliers @ limits
        least = np.maximum(least, before + took * raised[:, None] + bound.to_go[None, :])
    fits = (took <= (limits - partial.used)[:, None]) & np.isfinite(least) & (least < most)
    return [
        (float(least[kind, stop]), int(kind), int(stop), int(took[kind, stop]))
        for kind, stop in zip(*np.nonzero(fits), strict=True)
    ]
