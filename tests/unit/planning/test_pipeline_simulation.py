"""The event simulation against closed forms, against torch's own orders, and against what a schedule must respect."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from hetero.errors import PlanError
from hetero.planning import pipeline as simulation
from hetero.planning.pipeline import StageTime, Timeline, simulate
from hetero.planning.schedules import Action, Pipeline, Schedule, Work

SIZES = [(1, 1), (1, 5), (2, 1), (2, 2), (4, 8), (8, 3), (5, 16), (16, 64)]
TORCH_NAMES = {
    Schedule.INTERLEAVED: "Interleaved1F1B",
    Schedule.ZERO_BUBBLE: "InterleavedZeroBubble",
    Schedule.ZERO_BUBBLE_V: "ZBVZeroBubble",
}


def run(
    schedule: Schedule, ranks: int, micro_batches: int, *, chunks: int = 1, backward: float = 2.0, transfer: float = 0.0
) -> Timeline:
    pipeline = Pipeline(schedule=schedule, ranks=ranks, micro_batches=micro_batches, stages_per_rank=chunks)
    stage = StageTime(forward_s=1.0 / chunks, backward_s=backward / chunks)
    return simulate(pipeline, stages=[stage] * pipeline.stages, transfers_s=transfer)


@pytest.mark.parametrize(("ranks", "micro_batches"), SIZES)
@pytest.mark.parametrize("schedule", [Schedule.GPIPE, Schedule.ONE_F_ONE_B])
def test_bubbles_of_gpipe_and_1f1b_are_the_closed_form(schedule: Schedule, ranks: int, micro_batches: int) -> None:
    timeline = run(schedule, ranks, micro_batches)
    assert timeline.bubble_share == pytest.approx(simulation.gpipe_bubble_share(ranks, micro_batches), abs=1e-12)
    assert timeline.makespan_s == pytest.approx(3.0 * (micro_batches + ranks - 1))


@pytest.mark.parametrize("chunks", [2, 3, 4])
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 2), (2, 8), (4, 8), (4, 32), (8, 16)])
def test_interleaving_divides_the_idle_time_by_the_stages_of_a_rank(
    ranks: int, micro_batches: int, chunks: int
) -> None:
    timeline = run(Schedule.INTERLEAVED, ranks, micro_batches, chunks=chunks)
    plain = run(Schedule.ONE_F_ONE_B, ranks, micro_batches)
    busy = 3.0 * micro_batches
    assert timeline.makespan_s - busy == pytest.approx((plain.makespan_s - busy) / chunks)
    expected = simulation.interleaved_bubble_share(ranks, micro_batches, chunks)
    assert timeline.bubble_share == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("ranks", "micro_batches"), SIZES)
def test_1f1b_holds_pp_minus_rank_micro_batches_and_gpipe_all(ranks: int, micro_batches: int) -> None:
    plain, gpipe = run(Schedule.ONE_F_ONE_B, ranks, micro_batches), run(Schedule.GPIPE, ranks, micro_batches)
    for rank in range(ranks):
        assert plain.peak_activations(rank) == simulation.live_micro_batches(ranks, micro_batches, rank)
        assert gpipe.peak_activations(rank) == micro_batches
        assert plain.live_activations(rank)[-1][1] == 0


def test_zero_bubble_idles_less_than_1f1b_at_no_more_live_activations() -> None:
    """ZB-H1 (2401.10241): a third of the bubble of 1F1B when the three passes take equal time."""
    ranks, micro_batches = 4, 12
    plain = run(Schedule.ONE_F_ONE_B, ranks, micro_batches)
    zero = run(Schedule.ZERO_BUBBLE, ranks, micro_batches)
    busy = 3.0 * micro_batches
    assert zero.makespan_s - busy == pytest.approx((plain.makespan_s - busy) / 3)
    assert max(map(zero.peak_activations, range(ranks))) <= ranks
    shaped = run(Schedule.ZERO_BUBBLE_V, ranks, micro_batches, chunks=2)
    assert shaped.makespan_s < zero.makespan_s


@pytest.mark.parametrize("schedule", TORCH_NAMES)
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (4, 8), (3, 9), (4, 16), (8, 16)])
def test_orders_are_those_torch_runs(schedule: Schedule, ranks: int, micro_batches: int) -> None:
    pipeline = Pipeline(schedule=schedule, ranks=ranks, micro_batches=micro_batches, stages_per_rank=2)
    theirs = get_schedule_ops(TORCH_NAMES[schedule], ranks, micro_batches, 2)
    for ours, torchs in zip(pipeline.orders(), theirs, strict=True):
        assert [str(action) for action in ours] == [str(action) for action in torchs if action is not None]


def test_a_transfer_is_waited_for_once_a_rank_and_occupies_its_link() -> None:
    timeline = run(Schedule.GPIPE, 2, 1, transfer=5.0)
    assert timeline.makespan_s == pytest.approx(1 + 5 + 1 + 2 + 5 + 2)
    crowded = run(Schedule.GPIPE, 2, 4, transfer=10.0)
    starts = [timed.start_s for timed in crowded.ranks[1][:4]]
    assert starts == pytest.approx([11, 21, 31, 41])


def test_uneven_stages_are_held_up_by_the_slowest() -> None:
    """The slow middle rank waits 1 s for its first input and 1.5 s for its first gradient; rank 0 ends 2 s after it."""
    pipeline = Pipeline(schedule=Schedule.ONE_F_ONE_B, ranks=3, micro_batches=200)
    stages = [StageTime(forward_s=f, backward_s=2 * f) for f in (1.0, 1.5, 1.0)]
    timeline = simulate(pipeline, stages=stages)
    assert timeline.makespan_s == pytest.approx(1 + 200 * 4.5 + 1.5 + 2)
    assert timeline.busy_s(1) == pytest.approx(900)


def test_activations_weigh_what_their_stage_holds() -> None:
    pipeline = Pipeline(schedule=Schedule.GPIPE, ranks=2, micro_batches=3)
    timeline = simulate(pipeline, stages=[StageTime(forward_s=1, backward_s=1)] * 2)
    assert timeline.peak_activations(1, weights=[1.0, 2.5]) == 7.5


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_action_runs_once_in_order_and_after_what_it_needs(data: st.DataObject) -> None:
    schedule = data.draw(st.sampled_from(list(Schedule)))
    ranks = data.draw(st.integers(1, 5))
    chunks = {Schedule.INTERLEAVED: 3, Schedule.ZERO_BUBBLE: data.draw(st.integers(1, 3)), Schedule.ZERO_BUBBLE_V: 2}
    micro_batches = ranks * data.draw(st.integers(2, 4))
    pipeline = Pipeline(
        schedule=schedule, ranks=ranks, micro_batches=micro_batches, stages_per_rank=chunks.get(schedule, 1)
    )
    times = data.draw(st.lists(st.floats(0.1, 3), min_size=pipeline.stages, max_size=pipeline.stages))
    between = data.draw(st.floats(0, 2))
    stages = [StageTime(forward_s=t, backward_s=2 * t, input_share=0.4) for t in times]
    timeline = simulate(pipeline, stages=stages, transfers_s=between)

    ends = {timed.action: timed.end_s for rank in timeline.ranks for timed in rank}
    assert len(ends) == pipeline.stages * micro_batches * (3 if schedule.splits_backward else 2)
    gradient = Work.INPUT_GRADIENT if schedule.splits_backward else Work.BACKWARD
    for rank in timeline.ranks:
        for before, after in itertools.pairwise(rank):
            assert after.start_s >= before.end_s
        for timed in rank:
            work, stage, micro_batch = timed.action
            for needed in _needs(timed.action, gradient, pipeline.stages):
                far = pipeline.rank_of(needed.stage) != pipeline.rank_of(stage)
                assert timed.start_s >= ends[needed] + (between if far else 0.0) - 1e-9, (work, stage, micro_batch)


def _needs(action: Action, gradient: Work, stages: int) -> list[Action]:
    work, stage, micro_batch = action
    if work is Work.FORWARD:
        return [Action(Work.FORWARD, stage - 1, micro_batch)] if stage else []
    if work is Work.WEIGHT_GRADIENT:
        return [Action(Work.INPUT_GRADIENT, stage, micro_batch)]
    own = [Action(Work.FORWARD, stage, micro_batch)]
    return own + ([Action(gradient, stage + 1, micro_batch)] if stage + 1 < stages else [])


@pytest.mark.parametrize(
    ("schedule", "ranks", "micro_batches", "chunks", "part"),
    [
        (Schedule.GPIPE, 0, 1, 1, "each must be 1 or more"),
        (Schedule.ONE_F_ONE_B, 2, 2, 2, "use interleaved"),
        (Schedule.INTERLEAVED, 2, 2, 1, "at least 2 stages"),
        (Schedule.INTERLEAVED, 4, 13, 2, "take a multiple of 4, such as 12"),
        (Schedule.ZERO_BUBBLE_V, 2, 4, 3, "2 stages on each rank"),
        (Schedule.ZERO_BUBBLE_V, 4, 7, 2, "at least 8 micro-batches"),
    ],
)
def test_sizes_at_which_a_schedule_is_not_defined_are_refused(
    schedule: Schedule, ranks: int, micro_batches: int, chunks: int, part: str
) -> None:
    with pytest.raises(PlanError, match=part):
        Pipeline(schedule=schedule, ranks=ranks, micro_batches=micro_batches, stages_per_rank=chunks)


def test_times_of_another_number_of_stages_are_refused() -> None:
    pipeline = Pipeline(schedule=Schedule.GPIPE, ranks=2, micro_batches=2)
    stage = StageTime(forward_s=1, backward_s=1)
    with pytest.raises(PlanError, match="has 2 stages, and there are times of 3"):
        simulate(pipeline, stages=[stage] * 3)
    with pytest.raises(PlanError, match="1 transfers between them, not 2"):
        simulate(pipeline, stages=[stage] * 2, transfers_s=[1, 1])


def test_an_order_that_waits_for_itself_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    backward_first = [[Action(Work.BACKWARD, 0, 0), Action(Work.FORWARD, 0, 0)]]
    monkeypatch.setattr(Pipeline, "orders", lambda self: backward_first)
    with pytest.raises(PlanError, match="rank 0 never gets what 0B0 needs"):
        simulate(
            Pipeline(schedule=Schedule.GPIPE, ranks=1, micro_batches=1),
            stages=[StageTime(forward_s=1, backward_s=1)],
        )
