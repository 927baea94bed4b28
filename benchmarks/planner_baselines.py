"""Schedulers that the exact search is compared with: those of HeterPS (2111.10635), which choose a kind for each task.

Neighbouring tasks on one kind are one stage with the fewest nodes that reach the throughput; the cost is the price of
all nodes, infinite where a kind has too few. BRUTE FORCE tries every choice. GREEDY takes the cheapest next task.
GENETIC: tournaments, one-point crossover, mutation. REINFORCE: a softmax over kinds for each task (the paper has an
LSTM in its place), reward -log(cost), moving-average baseline.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from hetero.planning.segments import Segments
from hetero.records.arrays import F64

Choice = Sequence[int]
_WORST = 1e30


class Scheduler:
    """The cost of choices at a throughput. Counts how many it was asked for."""

    def __init__(self, segments: Segments, *, throughput: float, seed: int = 0) -> None:
        self._nodes = segments.nodes_for(throughput)
        self._prices = [kind.price for kind in segments.cluster.kinds]
        self._limits = [kind.count for kind in segments.cluster.kinds]
        self._generator = np.random.default_rng(seed)
        self.tasks, self.kinds = len(segments.chain.tasks), len(self._prices)

    def cost(self, choice: Choice) -> float:
        """Money an hour of the first len(choice) tasks."""
        used, start = [0] * self.kinds, 0
        for kind, run in itertools.groupby(choice):
            stop = start + len(list(run))
            used[kind] += int(self._nodes[kind, start, stop])
            start = stop
        if any(count > limit for count, limit in zip(used, self._limits, strict=True)):
            return _WORST
        return sum(count * price for count, price in zip(used, self._prices, strict=True))

    def brute_force(self) -> float:
        return min(map(self.cost, itertools.product(range(self.kinds), repeat=self.tasks)))

    def one_kind(self) -> float:
        return min(self.cost([kind] * self.tasks) for kind in range(self.kinds))

    def greedy(self) -> float:
        choice: list[int] = []
        for _ in range(self.tasks):
            choice.append(min(range(self.kinds), key=lambda kind: self.cost([*choice, kind])))
        return self.cost(choice)

    def genetic(self, *, population: int = 40, generations: int = 60) -> float:
        generator = self._generator
        people = [generator.integers(self.kinds, size=self.tasks) for _ in range(population)]
        best = _WORST
        for _ in range(generations):
            costs = [self.cost(person.tolist()) for person in people]
            best = min(best, *costs)
            children = [people[int(np.argmin(costs))]]
            while len(children) < population:
                first, second = (min(generator.integers(population, size=3), key=costs.__getitem__) for _ in range(2))
                cut = int(generator.integers(self.tasks + 1))
                child = np.concatenate([people[first][:cut], people[second][cut:]])
                changed = generator.random(self.tasks) < 1 / self.tasks
                child[changed] = generator.integers(self.kinds, size=int(changed.sum()))
                children.append(child)
            people = children
        return best

    def reinforce(self, *, rounds: int = 150, batch: int = 16, rate: float = 0.5) -> float:
        logits: F64 = np.zeros((self.tasks, self.kinds))
        baseline: float | None = None
        rows = np.arange(self.tasks)
        for _ in range(rounds):
            odds = _softmax(logits)
            draws = [(odds.cumsum(1) > self._generator.random((self.tasks, 1))).argmax(1) for _ in range(batch)]
            rewards = np.array([-np.log(self.cost(draw.tolist())) for draw in draws])
            baseline = float(rewards.mean()) if baseline is None else 0.8 * baseline + 0.2 * float(rewards.mean())
            step = np.zeros_like(logits)
            for draw, reward in zip(draws, rewards, strict=True):
                step -= (reward - baseline) * odds
                step[rows, draw] += reward - baseline
            logits += rate * step / batch
        return self.cost(logits.argmax(1).tolist())


BASELINES: dict[str, Callable[[Scheduler], float]] = {
    "everything on the best kind": Scheduler.one_kind,
    "greedy": Scheduler.greedy,
    "genetic": Scheduler.genetic,
    "reinforcement learning": Scheduler.reinforce,
}


def _softmax(logits: F64) -> F64:
    odds = np.exp(logits - logits.max(1, keepdims=True))
    shares: F64 = odds / odds.sum(1, keepdims=True)
    return shares
