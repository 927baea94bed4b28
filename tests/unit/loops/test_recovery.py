"""Every decision about a lost role, with its reason; and the account of what a loss cost."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace

import pytest

from hetero.errors import DeadlineError, NoRoomError, PeerLostError
from hetero.loops.recovery import Action, Counts, Decision, Loss, Recovery, RecoveryLog, Room, decide
from hetero.records import JobSpec, NodePlace, RoleSpec, ShareSpec
from tests.support.jobs import data_spec, small_job, write_data


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    path = write_data(tmp_path_factory.mktemp("data") / "a.parquet", rows=8, seed=1)
    return small_job(
        data_spec(path), readers=RoleSpec(count=2), servers=RoleSpec(count=3), towers=RoleSpec(count=2, threads=2)
    )


def lost(role: str | None, **known: object) -> Loss:
    return replace(Loss(cause="it died", role=role, alive=True), **known)  # type: ignore[arg-type]


def demand(job: JobSpec) -> Sequence[float]:
    return [0.1, *[0.5] * (job.readers.count + job.servers.count), *[2.0] * job.towers.count]


def decided(job: JobSpec, loss: Loss, **known: object) -> Decision:
    facts: dict[str, object] = {"recovered": 0, "limit": 3, "snapshot_step": 40, "room": None, **known}
    return decide(loss, job=job, **facts)  # type: ignore[arg-type]


def test_a_reader_is_replaced_while_all_others_live(job: JobSpec) -> None:
    decision = decided(job, lost("reader/1"))
    assert decision.action is Action.REPLACE
    assert "can be read again" in decision.reason
    assert decided(job, lost("reader/1"), stopping=True).action is Action.REPLACE


@pytest.mark.parametrize("role", ["server/0", "tower/1", "sequencer/0", None])
@pytest.mark.parametrize(("step", "where"), [(40, "the snapshot of step 40"), (None, "its start, as there is no")])
def test_without_any_other_role_the_run_goes_back(job: JobSpec, role: str | None, step: int | None, where: str) -> None:
    decision = decided(job, lost(role), snapshot_step=step)
    assert decision.action is Action.GO_BACK
    assert where in decision.reason
    assert (role or "a role").partition("/")[0] in decision.reason
    assert decision.counts is None


def test_a_reader_that_took_others_or_its_node_with_it_is_not_replaced(job: JobSpec) -> None:
    failed = decided(job, lost("reader/0", alive=False))
    assert (failed.action, "others have failed" in failed.reason) == (Action.GO_BACK, True)
    gone = decided(job, lost("reader/0", node_alive=False))
    assert (gone.action, "gone with its node" in gone.reason) == (Action.GO_BACK, True)


@pytest.mark.parametrize("role", ["reader/0", "server/0"])
def test_it_gives_up_after_as_many_recoveries_as_are_allowed(job: JobSpec, role: str) -> None:
    assert decided(job, lost(role), recovered=2).action is not Action.GIVE_UP
    decision = decided(job, lost(role), recovered=3)
    assert decision.action is Action.GIVE_UP
    assert "recovered 3 times (run.recoveries: 3)" in decision.reason
    none = decided(job, lost(role), limit=0)
    assert (none.action, "no recovery is allowed (run.recoveries: 0)" in none.reason) == (Action.GIVE_UP, True)


def test_it_gives_up_what_failed_before_it_trained_and_what_was_asked_to_stop(job: JobSpec) -> None:
    assert decided(job, lost("server/0", started=False)).action is Action.GIVE_UP
    stopped = decided(job, lost("server/0"), stopping=True)
    assert stopped.action is Action.GIVE_UP
    assert "asked to stop; `hetero resume` goes on from the snapshot of step 40" in stopped.reason


def test_the_numbers_of_actors_stay_where_the_nodes_that_are_left_hold_them(job: JobSpec) -> None:
    decision = decided(job, lost("server/0"), room=Room(nodes=(4.0, 3.0), demand=demand))
    assert (decision.action, decision.counts) == (Action.GO_BACK, None)
    refused = decided(job, lost("server/0", refused=True), room=Room(nodes=(4.0, 3.0), demand=demand))
    assert (refused.action, refused.counts, "others may use" in refused.reason) == (Action.GO_BACK, None, True)


def test_roles_whose_nodes_do_not_come_go_anywhere(job: JobSpec) -> None:
    """At first they are asked for again, as others may come in their place; then what there is has to do."""
    place = NodePlace(labels={"role": "gpu"}, resources={"CPU": 1.0}, readers=2, servers=2, towers=2)
    shares = ShareSpec(first=(3, 1), measured=True)
    placed, room = replace(job, nodes=(place,), shares=shares), Room(nodes=(4.0, 3.0), demand=demand)
    assert decided(placed, lost("server/0"), room=room).put_in(placed) == placed
    refused = decided(placed, lost("server/0", refused=True), room=room)
    assert "labels" in refused.reason
    assert refused.put_in(placed) == replace(placed, nodes=())
    fewer = decided(placed, lost("server/0"), room=Room(nodes=(4.0,), demand=demand))
    assert "wherever there is room" in fewer.reason
    assert (fewer.put_in(placed).nodes, fewer.put_in(placed).shares) == ((), ShareSpec())


@pytest.mark.parametrize(
    ("nodes", "counts"),
    [
        ((4.0, 2.2), Counts(readers=2, servers=2, towers=2)),
        ((2.0, 3.1), Counts(readers=1, servers=1, towers=2)),
        ((4.0,), Counts(readers=1, servers=1, towers=1)),
        ((3.1,), Counts(readers=1, servers=1, towers=1)),
    ],
)
def test_fewer_actors_go_on_where_a_node_is_gone(job: JobSpec, nodes: tuple[float, ...], counts: Counts) -> None:
    """Readers and servers are left out first: the bits do not depend on them."""
    decision = decided(job, lost("server/0"), room=Room(nodes=nodes, demand=demand))
    assert decision.action is Action.GO_BACK
    assert decision.counts == counts
    assert str(counts) in decision.reason
    assert Counts.of(counts.put_in(job)) == counts


@pytest.mark.parametrize("nodes", [(), (1.9, 1.9)])
def test_it_gives_up_where_not_even_one_of_each_fits(job: JobSpec, nodes: tuple[float, ...]) -> None:
    decision = decided(job, lost("server/0"), room=Room(nodes=nodes, demand=demand))
    assert decision.action is Action.GIVE_UP
    assert "hold no run of this job" in decision.reason


def recovery(step: int, back_to: int, *, action: Action = Action.GO_BACK) -> Recovery:
    return Recovery(
        cause="it died", role="server/0", action=action, reason="so", phase="train", step=step, back_to=back_to
    )


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_is_lost_from_the_last_progress_until_the_run_is_there_again() -> None:
    clock, told = Clock(), list[Recovery]()
    log = RecoveryLog(limit=3, told=told.append, now=clock)
    log.reached(50)
    clock.now += 3
    log.reached(50)
    clock.now += 1
    log.notice()
    log.begin(recovery(50, 40))
    assert log.count == 1
    clock.now += 3
    log.reached(49)
    assert not told
    clock.now += 1
    log.reached(50)
    assert [(r.lost_s, r.steps_repeated) for r in told] == [(8.0, 10)]
    log.reached(51)
    assert log.done == told
    assert told[0].to_dict()["action"] == "go back"


def test_a_loss_while_recovering_ends_the_recovery_before_it() -> None:
    clock = Clock()
    log = RecoveryLog(limit=3, now=clock)
    log.begin(recovery(50, 40))
    clock.now += 5
    log.notice()
    clock.now += 2
    log.begin(recovery(44, 40))
    clock.now += 3
    log.reached(0, training=False)
    assert [r.lost_s for r in log.done] == [5.0, 5.0]
    log.begin(recovery(60, 60, action=Action.REPLACE))
    clock.now += 1
    log.replaced()
    assert (log.count, log.done[-1].lost_s, log.done[-1].steps_repeated) == (3, 1.0, 0)


def test_giving_up_tells_what_was_tried() -> None:
    log = RecoveryLog(limit=1)
    log.begin(recovery(50, 40))
    error = log.gave_up(PeerLostError("server/1 died", role="server/1"), "the run has recovered 1 times")
    assert str(error) == "server/1 died; not recovered: the run has recovered 1 times (before that: it died)"
    assert error.role == "server/1"
    assert log.gave_up(NoRoomError("no room"), "x").role is None


def test_who_was_lost_travels_with_the_error() -> None:
    for kind in (PeerLostError, DeadlineError):
        error = pickle.loads(pickle.dumps(kind("tower/0 is gone", role="tower/0")))
        assert (type(error), str(error), error.role) == (kind, "tower/0 is gone", "tower/0")


def test_below_the_least_numbers_the_run_waits_for_nodes(job: JobSpec) -> None:
    least = Counts(readers=1, servers=2, towers=2)
    small = Room(nodes=(3.0,), demand=demand)
    decision = decided(job, lost("server/0", alive=False), room=small, least=least)
    assert (decision.action, decision.counts) == (Action.GO_BACK, least)
    assert "do not hold 1 reader, 2 servers, 2 towers: back to the snapshot of step 40, to wait" in decision.reason
    roomy = decided(job, lost("server/0", alive=False), room=Room(nodes=(6.0,), demand=demand), least=least)
    assert roomy.counts is not None
    assert not roomy.counts.below(least)
