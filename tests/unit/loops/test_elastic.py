"""The policy that decides how many actors a run goes on with, against trying all numbers; and its patience."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from hetero.loops.elastic import ROLES, Bounds, Replan, Settled, replan
from hetero.loops.recovery import Counts, Room
from hetero.records import JobSpec
from tests.support.jobs import data_spec, small_job

WRITTEN = Counts(readers=1, servers=2, towers=2)
JOB = WRITTEN.put_in(small_job(data_spec()))


def counts(readers: int, servers: int, towers: int) -> Counts:
    return Counts(readers=readers, servers=servers, towers=towers)


def room(*nodes: float) -> Room:
    """A reader or a server takes half a CPU, a tower two."""

    def demand(job: JobSpec) -> Sequence[float]:
        return [0.5] * (job.readers.count + job.servers.count) + [2.0] * job.towers.count

    return Room(nodes=nodes, demand=demand)


UP_TO_FOUR = Bounds(least=counts(1, 1, 1), most=counts(2, 4, 4))


def test_all_roles_grow_in_proportion_and_stay_within_their_bounds() -> None:
    assert replan(JOB, now=WRITTEN, bounds=UP_TO_FOUR, room=room(100)).counts == counts(2, 4, 4)
    assert replan(JOB, now=WRITTEN, bounds=UP_TO_FOUR, room=room(4, 4)).counts == counts(1, 2, 2)
    assert replan(JOB, now=WRITTEN, bounds=UP_TO_FOUR, room=room(4)).counts == counts(1, 1, 1)


def test_reasons_name_nodes_and_numbers() -> None:
    grown = replan(JOB, now=WRITTEN, bounds=UP_TO_FOUR, room=room(8, 8))
    assert grown.reason == (
        "the nodes that are there (8 CPUs, 8 CPUs) hold 2 readers, 4 servers, 4 towers, within the bounds; it had "
        "1 reader, 2 servers, 2 towers"
    )
    assert (
        "do not hold the least, 1 reader, 1 server, 1 tower"
        in replan(JOB, now=WRITTEN, bounds=UP_TO_FOUR, room=room(1)).reason
    )
    assert "no more" in replan(JOB, now=counts(1, 2, 2), bounds=UP_TO_FOUR, room=room(4, 4)).reason


def test_the_order_of_nodes_is_no_other_decision() -> None:
    first, second = (replan(JOB, now=WRITTEN, bounds=UP_TO_FOUR, room=room(*nodes)) for nodes in ((8, 4), (4, 8)))
    assert first == second


def test_a_role_without_bounds_of_its_own_keeps_its_number() -> None:
    servers_alone = Bounds(least=counts(1, 1, 2), most=counts(1, 6, 2))
    assert replan(JOB, now=WRITTEN, bounds=servers_alone, room=room(100)).counts == counts(1, 6, 2)
    assert replan(JOB, now=counts(1, 6, 2), bounds=servers_alone, room=room(5.5)).counts == counts(1, 2, 2)


ranges = st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 3))


@given(
    written=st.tuples(ranges, ranges, ranges),
    nodes=st.lists(st.floats(0.5, 12), min_size=1, max_size=4),
    data=st.data(),
)
def test_the_decision_fits_is_within_bounds_and_none_in_proportion_is_larger(
    written: tuple[tuple[int, int, int], ...], nodes: list[float], data: st.DataObject
) -> None:
    base, below, above = zip(*written, strict=True)
    least = counts(*(max(1, b - less) for b, less in zip(base, below, strict=True)))
    most = counts(*(b + more for b, more in zip(base, above, strict=True)))
    bounds, job, there = Bounds(least=least, most=most), counts(*base).put_in(JOB), room(*nodes)
    now = counts(*(data.draw(st.integers(getattr(least, r), getattr(most, r))) for r in ROLES))
    found = replan(job, now=now, bounds=bounds, room=there)
    oracle = largest_in_proportion(counts(*base), bounds, job, there)
    assert found.counts == (now if oracle is None else oracle)


def largest_in_proportion(base: Counts, bounds: Bounds, job: JobSpec, there: Room) -> Counts | None:
    """Every number within the bounds is tried; in proportion are those that some common factor gives, rounded up."""

    def reached(counts_: Counts, factor: float) -> bool:
        for name in ROLES:
            wanted = -(-getattr(base, name) * factor // 1)
            low, high = getattr(bounds.least, name), getattr(bounds.most, name)
            if getattr(counts_, name) != min(max(wanted, low), high):
                return False
        return True

    all_numbers = product(*(range(getattr(bounds.least, r), getattr(bounds.most, r) + 1) for r in ROLES))
    factors = [numerator / denominator for denominator in range(1, 4) for numerator in range(1, 40)]
    fitting = [
        one
        for numbers in all_numbers
        if there.holds((one := counts(*numbers)).put_in(job)) and any(reached(one, factor) for factor in factors)
    ]
    return max(fitting, key=lambda one: one.readers + one.servers + one.towers, default=None)


def test_a_decision_must_hold_before_it_is_told_once() -> None:
    clock = [0.0]
    settled = Settled(10.0, now=lambda: clock[0])
    first, second = (Replan(counts=counts(1, 1, n), reason="r") for n in (1, 2))
    assert settled.look(first) is None
    clock[0] = 9.0
    assert settled.look(second) is None
    clock[0] = 18.0
    assert settled.look(second) is None
    clock[0] = 19.0
    assert settled.look(second) == second
    assert settled.look(second) is None
    clock[0] = 40.0
    assert settled.look(second) is None
