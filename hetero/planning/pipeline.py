"""Event simulation of a pipeline step: when each action starts, what ranks wait for, which activations live when.

A rank computes its actions in order, each as soon as what it needs has arrived. A transfer occupies its directed link,
not the ranks; transfers of one link follow each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hetero.errors import PlanError
from hetero.planning.schedules import Action, Pipeline, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """Seconds of one micro-batch in one stage. backward_s: both gradients, the inputs' share is input_s."""

    forward_s: float
    backward_s: float
    input_share: float = 0.5

    def of(self, work: Work) -> float:
        if work is Work.FORWARD:
            return self.forward_s
        if work is Work.BACKWARD:
            return self.backward_s
        return self.backward_s * (self.input_share if work is Work.INPUT_GRADIENT else 1 - self.input_share)

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """An action with its start and end, in seconds from the start of the step."""

    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A simulated step. ranks: the timed actions of each rank, in order."""

    ranks: tuple[tuple[Timed, ...], ...]

    @property
    def makespan_s(self) -> float:
        return max(timed.end_s for rank in self.ranks for timed in rank)

    def busy_s(self, rank: int) -> float:
        return sum(timed.end_s - timed.start_s for timed in self.ranks[rank])

    @property
    def bubble_share(self) -> float:
        """Idle time / (ranks x makespan): the share of the step that all ranks together compute nothing."""
        return 1 - sum(self.busy_s(rank) for rank in range(len(self.ranks))) / (len(self.ranks) * self.makespan_s)

    def live_activations(self, rank: int, *, weights: Sequence[float] | None = None) -> list[tuple[float, float]]:
        """(seconds, what lives from then on) whenever it changes. weights: of each stage's activations, default 1.

        Activations live from the start of a forward to the end of the backward, or of the weights' gradient.
        """
        events = []
        for timed in self.ranks[rank]:
            weight = 1.0 if weights is None else weights[timed.action.stage]
            if timed.action.work is Work.FORWARD:
                events.append((timed.start_s, 1, weight))
            elif timed.action.work is not Work.INPUT_GRADIENT:
                events.append((timed.end_s, 0, -weight))
        live, steps = 0.0, []
        for second, _, weight in sorted(events):
            live += weight
            steps.append((second, live))
        return steps

    def peak_activations(self, rank: int, *, weights: Sequence[float] | None = None) -> float:
        """The most that lives at once on a rank."""
        return max(live for _, live in self.live_activations(rank, weights=weights))


def simulate(
    pipeline: Pipeline, *, stages: Sequence[StageTime], transfers_s: Sequence[float] | float = 0.0
) -> Timeline:
    """One step of a pipeline. stages: of each stage; transfers_s: from each stage to the next, and back.

    Raises PlanError when the sizes disagree, or when the order waits for itself.
    """
    if len(stages) != pipeline.stages:
        raise PlanError(f"the pipeline has {pipeline.stages} stages, and there are times of {len(stages)}")
    between = [transfers_s] * (pipeline.stages - 1) if isinstance(transfers_s, int | float) else list(transfers_s)
    if len(between) != pipeline.stages - 1:
        raise PlanError(
            f"{pipeline.stages} stages have {pipeline.stages - 1} transfers between them, not {len(between)}"
        )
    return _Run(pipeline, stages, between).finished()


class _Run:
    """The state of a simulation: how far each rank is, what has arrived where, and until when links are occupied."""

    def __init__(self, pipeline: Pipeline, stages: Sequence[StageTime], between: Sequence[float]) -> None:
        self._pipeline = pipeline
        self._stages = stages
        self._between = between
        self._orders = pipeline.orders()
        self._rank_of = [pipeline.rank_of(stage) for stage in range(pipeline.stages)]
        self._done: list[list[Timed]] = [[] for _ in self._orders]
        self._arrived: dict[Action, float] = {}
        self._link_free: dict[tuple[int, int], float] = defaultdict(float)

    def finished(self) -> Timeline:
        ready = list(range(len(self._orders)))
        while ready:
            ready.extend(self._advance(ready.pop()))
        for rank, order in enumerate(self._orders):
            if len(self._done[rank]) < len(order):
                stuck = order[len(self._done[rank])]
                raise PlanError(f"the schedule waits for itself: rank {rank} never gets what {stuck} needs")
        return Timeline(ranks=tuple(tuple(rank) for rank in self._done))

    def _advance(self, rank: int) -> set[int]:
        """Compute what can be computed on a rank; the ranks that may go on for it."""
        order, done, others = self._orders[rank], self._done[rank], set[int]()
        while len(done) < len(order):
            action = order[len(done)]
            arrived = self._arrival(action)
            if arrived is None:
                break
            start = max(arrived, done[-1].end_s if done else 0.0)
            end = start + self._stages[action.stage].of(action.work)
            done.append(Timed(action=action, start_s=start, end_s=end))
            receiver = self._send(action, end)
            if receiver != rank:
                others.add(receiver)
        return others

    def _arrival(self, action: Action) -> float | None:
        """When everything an action needs is on its rank; None if something is still to come."""
        if action.work is Work.FORWARD:
            return 0.0 if action.stage == 0 else self._arrived.get(action)
        if action.work is Work.WEIGHT_GRADIENT or action.stage == self._pipeline.stages - 1:
            return self._arrived.get(_before(action))
        own, next_stage = self._arrived.get(_before(action)), self._arrived.get(action)
        return None if own is None or next_stage is None else max(own, next_stage)

    def _send(self, action: Action, end: float) -> int:
        """Hand the result on; returns the rank that gets it."""
        rank = self._rank_of[action.stage]
        self._arrived[_finished(action)] = end
        step = 1 if action.work is Work.FORWARD else -1
        stage = action.stage + step
        if action.work is Work.WEIGHT_GRADIENT or not 0 <= stage < self._pipeline.stages:
            return rank
        receiver = self._rank_of[stage]
        self._arrived[action._replace(stage=stage)] = self._carried(rank, receiver, min(stage, action.stage), end)
        return receiver

    def _carried(self, rank: int, receiver: int, boundary: int, end: float) -> float:
        if rank == receiver:
            return end
        arrival = max(end, self._link_free[rank, receiver]) + self._between[boundary]
        self._link_free[rank, receiver] = arrival
        return arrival


def _finished(action: Action) -> Action:
    """The name under which an action's own result lies on its rank: apart from what neighbours send."""
    return action._replace(micro_batch=-1 - action.micro_batch)


def _before(action: Action) -> Action:
    """The result on the same rank that an action continues."""
    before = Work.INPUT_GRADIENT if action.work is Work.WEIGHT_GRADIENT else Work.FORWARD
    return _finished(action._replace(work=before))


def gpipe_bubble_share(ranks: int, micro_batches: int) -> float:
    """Of GPipe and 1F1B with equal stages and free transfers: (p - 1) / (m + p - 1) of the step."""
    return (ranks - 1) / (micro_batches + ranks - 1)


def interleaved_bubble_share(ranks: int, micro_batches: int, stages_per_rank: int) -> float:
    """Of interleaved 1F1B: idle / ideal time is (p - 1) / (v m), so 1/v of 1F1B's (2104.04473, section 2.2.2)."""
    idle = (ranks - 1) / (stages_per_rank * micro_batches)
    return idle / (1 + idle)


def live_micro_batches(ranks: int, micro_batches: int, rank: int) -> int:
    """Micro-batches whose activations a rank of 1F1B holds at once: min(p - rank, m). GPipe holds all m."""
    return min(ranks - rank, micro_batches)
