"""Pipeline schedules as lists: what each rank computes, in which order. Times are put to them in `pipeline`.

    rank 0   F0 F1 F2 F3 .. B0 F4 B1 ...      F: forward   B: backward, both gradients at once
    rank 1      F0 F1 F2 B0 F3 B1 ...         I: gradient of the input   W: gradient of the weights

Sources: GPipe, Huang et al. 2019 (1811.06965); 1F1B and interleaved 1F1B, Narayanan et al. 2021 (2104.04473);
zero-bubble (I and W apart) and its V-shaped form, Qi et al. 2023 (2401.10241). Interleaved, zero-bubble and V orders
are those of torch.distributed.pipelining, which the tests compare them with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from hetero.errors import PlanError


class Work(Enum):
    """What one action computes."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT_GRADIENT = "I"
    WEIGHT_GRADIENT = "W"


class Action(NamedTuple):
    """One micro-batch through one stage."""

    work: Work
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.work.value}{self.micro_batch}"


class Schedule(Enum):
    """Pipeline schedules. ZERO_BUBBLE is interleaved when a rank has several stages, ZB-H1 when it has one."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE = "zero_bubble"
    ZERO_BUBBLE_V = "zero_bubble_v"

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of inputs and of weights are separate actions."""
        return self in (Schedule.ZERO_BUBBLE, Schedule.ZERO_BUBBLE_V)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A schedule at given sizes. stages_per_rank: chunks of the model that each rank holds.

    Raises PlanError for sizes at which the schedule is not defined.
    """

    schedule: Schedule
    ranks: int
    micro_batches: int
    stages_per_rank: int = 1

    def __post_init__(self) -> None:
        if reason := why_undefined(self.schedule, self.ranks, self.micro_batches, self.stages_per_rank):
            raise PlanError(reason)

    @property
    def stages(self) -> int:
        return self.ranks * self.stages_per_rank

    def rank_of(self, stage: int) -> int:
        """Stages go round the ranks; the V-shaped schedule goes there and back."""
        if self.schedule is Schedule.ZERO_BUBBLE_V and stage >= self.ranks:
            return self.stages - 1 - stage
        return stage % self.ranks

    def stages_of(self, rank: int) -> list[int]:
        """What a rank holds, in the order of the model."""
        if self.schedule is Schedule.ZERO_BUBBLE_V:
            return [rank, self.stages - 1 - rank]
        return list(range(rank, self.stages, self.ranks))

    def order(self, rank: int) -> list[Action]:
        """The actions of a rank, in the order in which it computes them."""
        return list(_ORDERS[self.schedule](self, rank))

    def orders(self) -> list[list[Action]]:
        """The actions of each rank."""
        return [self.order(rank) for rank in range(self.ranks)]


def why_undefined(schedule: Schedule, ranks: int, micro_batches: int, stages_per_rank: int) -> str | None:
    """What is wrong with the sizes of a pipeline, or None."""
    if min(ranks, micro_batches, stages_per_rank) < 1:
        return f"{ranks} ranks, {micro_batches} micro-batches, {stages_per_rank} stages a rank: each must be 1 or more"
    if schedule in (Schedule.GPIPE, Schedule.ONE_F_ONE_B) and stages_per_rank != 1:
        return f"{schedule.value} has 1 stage on each rank, not {stages_per_rank}; use interleaved"
    if schedule is Schedule.INTERLEAVED and stages_per_rank < 2:
        return "interleaved needs at least 2 stages on each rank; use 1f1b for 1"
    if schedule is Schedule.ZERO_BUBBLE_V and stages_per_rank != 2:
        return f"zero_bubble_v has 2 stages on each rank, not {stages_per_rank}"
    rounds = max(1, micro_batches // ranks)
    if schedule in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE) and micro_batches % rounds:
        return (
            f"{micro_batches} micro-batches over {ranks} ranks make {rounds} rounds of unequal length; take a multiple "
            f"of {ranks}, such as {micro_batches // ranks * ranks}"
        )
    if schedule is Schedule.ZERO_BUBBLE_V and micro_batches < 2 * ranks:
        return f"zero_bubble_v needs at least {2 * ranks} micro-batches for {ranks} ranks, not {micro_batches}"
    return None


def _gpipe(pipeline: Pipeline, rank: int) -> Iterator[Action]:
    for work in (Work.FORWARD, Work.BACKWARD):
        yield from (Action(work, rank, micro_batch) for micro_batch in range(pipeline.micro_batches))


def _one_f_one_b(pipeline: Pipeline, rank: int) -> Iterator[Action]:
    micro_batches = pipeline.micro_batches
    ahead = min(pipeline.ranks - rank - 1, micro_batches)
    yield from (Action(Work.FORWARD, rank, micro_batch) for micro_batch in range(ahead))
    for micro_batch in range(micro_batches):
        if micro_batch + ahead < micro_batches:
            yield Action(Work.FORWARD, rank, micro_batch + ahead)
        yield Action(Work.BACKWARD, rank, micro_batch)


def _interleaved(pipeline: Pipeline, rank: int) -> Iterator[Action]:
    forwards, backwards = _rounds(pipeline, rank, Work.FORWARD), _rounds(pipeline, rank, Work.BACKWARD)
    ahead = _ahead(pipeline, rank, factor=2)
    yield from forwards[:ahead]
    for number, backward in enumerate(backwards):
        yield from forwards[ahead + number : ahead + number + 1]
        yield backward


def _zero_bubble(pipeline: Pipeline, rank: int) -> Iterator[Action]:
    """As interleaved, with half the forwards ahead; weights' gradients follow `rank` inputs' gradients later."""
    forwards, inputs = _rounds(pipeline, rank, Work.FORWARD), _rounds(pipeline, rank, Work.INPUT_GRADIENT)
    weights = [action._replace(work=Work.WEIGHT_GRADIENT) for action in inputs]
    ahead = _ahead(pipeline, rank, factor=1)
    yield from forwards[:ahead]
    for number, backward in enumerate(inputs):
        yield from forwards[ahead + number : ahead + number + 1]
        yield backward
        if number >= rank:
            yield weights[number - rank]
    yield from weights[max(0, len(weights) - rank) :]


def _ahead(pipeline: Pipeline, rank: int, *, factor: int) -> int:
    """Forwards that a rank computes before its first forward and backward pair."""
    last_rank = (pipeline.stages_per_rank - 1) * _round_length(pipeline)
    return min(
        last_rank + factor * (pipeline.ranks - 1 - rank),
        pipeline.micro_batches * pipeline.stages_per_rank,
    )


def _round_length(pipeline: Pipeline) -> int:
    return pipeline.micro_batches // max(1, pipeline.micro_batches // pipeline.ranks)


def _rounds(pipeline: Pipeline, rank: int, work: Work) -> list[Action]:
    """All actions of one kind: a round of micro-batches through each of the rank's stages, then the next round."""
    chunks = range(pipeline.stages_per_rank)
    stages = [rank + chunk * pipeline.ranks for chunk in (chunks if work is Work.FORWARD else reversed(chunks))]
    length = _round_length(pipeline)
    return [
        Action(work, stage, micro_batch)
        for first in range(0, pipeline.micro_batches, length)
        for stage in stages
        for micro_batch in range(first, first + length)
    ]


def _zero_bubble_v(pipeline: Pipeline, rank: int) -> Iterator[Action]:
    """Rank r holds stage r on the way out and its mirror on the way back: the last stage is where the first is."""
    ranks, micro_batches = pipeline.ranks, pipeline.micro_batches
    out, back = rank, pipeline.stages - 1 - rank
    count = {(work, stage): 0 for work in Work for stage in (out, back)}

    def after(work: Work, stage: int) -> Action:
        count[work, stage] += 1
        return Action(work, stage, count[work, stage] - 1)

    def gradients(stage: int) -> Iterator[Action]:
        yield after(Work.INPUT_GRADIENT, stage)
        yield after(Work.WEIGHT_GRADIENT, stage)

    yield from (after(Work.FORWARD, out) for _ in range(2 * (ranks - rank) - 1))
    for _ in range(rank):
        yield after(Work.FORWARD, back)
        yield after(Work.FORWARD, out)
    for _ in range(ranks - rank):
        yield after(Work.FORWARD, back)
        yield from gradients(back)
    while count[Work.FORWARD, back] < micro_batches:
        if count[Work.FORWARD, out] < micro_batches:
            yield after(Work.FORWARD, out)
        yield from gradients(out)
        yield after(Work.FORWARD, back)
        yield from gradients(back)
    for _ in range(rank):
        yield after(Work.INPUT_GRADIENT, out)
        yield after(Work.INPUT_GRADIENT, back)
    for _ in range(ranks - rank):
        yield from gradients(out)
    for stage in (back, out):
        while count[Work.WEIGHT_GRADIENT, stage] < micro_batches:
            yield after(Work.WEIGHT_GRADIENT, stage)


_ORDERS = {
    Schedule.GPIPE: _gpipe,
    Schedule.ONE_F_ONE_B: _one_f_one_b,
    Schedule.INTERLEAVED: _interleaved,
    Schedule.ZERO_BUBBLE: _zero_bubble,
    Schedule.ZERO_BUBBLE_V: _zero_bubble_v,
}
