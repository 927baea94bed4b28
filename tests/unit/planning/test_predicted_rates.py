"""Profiles and predictions: what lies between points, where shares meet, what a run waits for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import PlanError
from hetero.hardware.devices import Link
from hetero.planning.predict import Configuration, predict
from hetero.planning.task_profile import JobProfile, NodeProfile, Point
from hetero.records.cluster import ClusterSpec, NodeKind

NOTHING = Link(name="none", latency_s=0.0, bytes_per_s=1e30)
SIZES = (64, 256, 1024)


def node(kind: str, *, tower: tuple[float, float], cpu_row_s: float = 0.0, reader_row_s: float = 1e-7) -> NodeProfile:
    """tower: seconds of a step, and of a row more."""
    lines: Mapping[str, tuple[float, float, float]] = {
        **dict.fromkeys(("read", "parse", "dedup"), (0.0, reader_row_s / 3, reader_row_s / 3)),
        "window": (0.0, 1e-8, 1e-8),
        **dict.fromkeys(("lookup", "push"), (0.0, 1e-07, 1e-07)),
        **dict.fromkeys(("gather", "backward", "return", "optimizer"), (0.0, 0.0, 0.0)),
        "forward": (*tower, cpu_row_s),
    }
    tasks = {
        name: tuple(Point(rows=n, seconds=fixed + row * n, cpu_s=cpu * n, bytes=8.0 * n) for n in SIZES)
        for name, (fixed, row, cpu) in lines.items()
    }
    return NodeProfile(kind=kind, hardware="made up", fingerprint="0", threads=1, tasks=tasks)


def profile(*nodes: NodeProfile) -> JobProfile:
    return JobProfile(job="job.yaml", job_fingerprint="f", nodes=nodes)


def asked(*towers: str, **more: object) -> Configuration:
    base = Configuration(
        readers=("cpu",), servers=("cpu",), towers=towers, batch=1024, window=8, calls=NOTHING, group=NOTHING
    )
    return replace(base, **more)  # type: ignore[arg-type]


CPU = node("cpu", tower=(1e-3, 1e-4))
FAST = node("fast", tower=(1e-3, 1e-5))
SLOW = node("slow", tower=(1e-3, 3e-5))


def test_points_are_joined_by_lines_and_go_on_beyond_them() -> None:
    for rows in (16, 64, 100, 700, 1024, 4096):
        assert FAST.seconds(["forward"], rows) == pytest.approx(1e-3 + 1e-5 * rows)
    single = NodeProfile(
        kind="one", hardware="", fingerprint="", threads=1, tasks={"forward": (Point(rows=10, seconds=1.0),)}
    )
    assert single.seconds(["forward"], 5) == pytest.approx(0.5)
    assert single.seconds(["nothing"], 5) == 0


def test_one_tower_is_as_fast_as_its_step() -> None:
    said = predict(profile(CPU, FAST), asked("fast"))
    assert said.bound_by == "towers"
    assert said.samples_per_s == pytest.approx(1024 / (1e-3 + 1e-5 * 1024))
    assert said.shares == (1.0,)


@settings(max_examples=50, deadline=None)
@given(speeds=st.lists(st.tuples(st.floats(0, 5e-3), st.floats(1e-6, 1e-4)), min_size=2, max_size=5))
def test_shares_let_towers_end_together_and_no_others_are_faster(speeds: list[tuple[float, float]]) -> None:
    nodes = [node(f"k{n}", tower=speed) for n, speed in enumerate(speeds)]
    names = [each.kind for each in nodes]
    said = predict(profile(CPU, *nodes), asked(*names))
    assert sum(said.shares) == pytest.approx(1)
    busy = [each.seconds(["forward"], share * 1024) for each, share in zip(nodes, said.shares, strict=True)]
    assert max(busy) <= said.step_s * 1.001
    if min(said.shares) * 1024 > 1.5:  # a tower has a row at least, however long that takes
        assert busy == pytest.approx([said.step_s] * len(busy), rel=0.01)
    equal = predict(profile(CPU, *nodes), asked(*names, shares=[1 / len(names)] * len(names)))
    assert said.samples_per_s >= equal.samples_per_s * (1 - 1e-6)


@pytest.mark.parametrize(("gather", "reading", "hidden"), [(0.2, 0.5, 0.2), (0.5, 0.2, 0.2)])
def test_texts_are_read_while_rows_come(gather: float, reading: float, hidden: float) -> None:
    def point(seconds: float) -> tuple[Point, ...]:
        return (Point(rows=1024, seconds=seconds, bytes=0.0),)

    more = {"gather": point(gather), "beside gather": point(reading), "forward": point(1.0)}
    texts = replace(FAST, tasks={**FAST.tasks, **more})
    assert texts.tower_s(1024) == pytest.approx(1.0 + gather - hidden)
    alone = predict(profile(CPU, texts), asked("fast"))
    assert alone.step_s == pytest.approx(1.0 + gather - hidden)
    waiting = predict(profile(CPU, texts), asked("fast", window=0)).step_s
    lookup, push = 1024e-7, 1024e-7
    assert waiting == pytest.approx(1.0 + gather + lookup + push - min(gather + lookup + push, reading))
    together = predict(profile(CPU, texts), asked("fast", "fast", window=0, shares=(1.0, 1.0))).step_s
    assert together >= 1.0 + max(gather - reading, 0.0) + 0.99 * push  # the sum over towers waits for the push
    both = predict(profile(CPU, texts), asked("fast", "fast", shares=(1.0, 1.0)))
    assert both.step_s == pytest.approx(1.0 + gather)  # leased rows are swapped by the step's thread


def test_whoever_is_slowest_holds_up_the_run() -> None:
    slow_reader = node("cpu", tower=(1e-3, 1e-4), reader_row_s=1e-3)
    said = predict(profile(slow_reader, FAST), asked("fast"))
    assert said.bound_by == "readers"
    assert said.samples_per_s == pytest.approx(1000)
    twice = predict(profile(slow_reader, FAST), asked("fast", readers=("cpu", "cpu")))
    assert twice.samples_per_s == pytest.approx(2000)


def test_without_windows_a_step_waits_for_servers_and_calls() -> None:
    calls = Link(name="calls", latency_s=1e-2, bytes_per_s=1e9)
    windowed, pulled = (predict(profile(CPU, FAST), asked("fast", calls=calls, window=k)) for k in (8, 0))
    moved = 2 * 8.0 * 1024
    assert pulled.step_s - windowed.step_s == pytest.approx(2 * 1e-2 + moved / 1e9 + 2e-7 * 1024)
    half = predict(profile(CPU, FAST), asked("fast", calls=calls, window=0, servers=("cpu", "cpu")))
    assert pulled.step_s - half.step_s == pytest.approx(1e-7 * 1024)


def test_windows_cannot_be_shorter_than_their_leases_take() -> None:
    calls = Link(name="calls", latency_s=0.5, bytes_per_s=1e9)
    slow, fast = (predict(profile(CPU, FAST), asked("fast", calls=calls, window=k)) for k in (8, 128))
    assert slow.bound_by == "leases"
    assert slow.samples_per_s == pytest.approx(1024 / (2 * 0.5 / 8 + 16.0 * 1024 / 1e9))
    assert fast.bound_by == "towers"


def test_meetings_cost_several_towers_time() -> None:
    group = Link(name="group", latency_s=1e-3, bytes_per_s=1e6)
    two = predict(profile(CPU, FAST), asked("fast", "fast", group=group, dense_bytes=1e4))
    free = predict(profile(CPU, FAST), asked("fast", "fast"))
    swapped = 2 * 8.0 * 512 / 2  # weights and gradients of half of each one's rows
    assert two.step_s - free.step_s == pytest.approx(3 * 1e-3 + (1e4 + swapped) / 1e6)
    more = predict(profile(CPU, FAST), asked("fast", "fast", group=group, dense_bytes=1e4, groups=3))
    assert more.step_s - two.step_s == pytest.approx(4 * 1e-3)
    pulled = [predict(profile(CPU, FAST), asked("fast", "fast", group=each, window=0)) for each in (group, NOTHING)]
    assert pulled[0].step_s - pulled[1].step_s == pytest.approx(1e-3)


def test_nodes_of_one_machine_share_its_cores() -> None:
    busy = node("busy", tower=(0.0, 1e-5), cpu_row_s=1e-5)
    said = predict(profile(CPU, busy), asked("busy", "busy", "busy", "busy", machine_cores=1))
    assert said.bound_by == "cores"
    assert said.samples_per_s < 1e5


def test_towers_that_wait_for_devices_together_compute_together_on_a_machines_cores() -> None:
    """Four with 1 ms of CPU time in a step each, on two cores: the last is done after 2 ms; two do not meet."""
    device = node("device", tower=(10e-3, 0.0), cpu_row_s=4e-3 / 1024)
    alone = predict(profile(CPU, device), asked("device", "device", "device", "device"))
    four = predict(profile(CPU, device), asked("device", "device", "device", "device", machine_cores=2))
    before = 1024 * (1e-7 + 1e-8 + 2e-7) / four.step_s
    assert four.step_s - alone.step_s == pytest.approx(4e-3 / (2 - before) - 1e-3)
    two = asked("device", "device", machine_cores=4)
    assert (
        predict(profile(CPU, device), two).step_s == predict(profile(CPU, device), replace(two, machine_cores=0)).step_s
    )


def test_calls_and_collectives_take_of_a_machines_cores_too() -> None:
    """A tower has 3 collectives and 1.5 calls in a step of windows of 8; calls take as much at their other end."""
    device = node("device", tower=(10e-3, 0.0), cpu_row_s=4e-3 / 1024)
    base = asked("device", "device", "device", "device", machine_cores=2)
    four = predict(profile(CPU, device), replace(base, call_cpu_s=1e-4, message_cpu_s=2e-4))
    before = (1024 * (1e-7 + 1e-8 + 2e-7) + 4 * 1.5 * 1e-4) / four.step_s
    own = 1e-3 + 1.5 * 1e-4 + 3 * 2e-4
    assert four.step_s == pytest.approx(10e-3 + 4 * own / (2 - before) - own, rel=1e-6)
    apart = replace(base, machine_cores=0, call_cpu_s=1e-4, message_cpu_s=2e-4)
    assert (
        predict(profile(CPU, device), apart).step_s
        == predict(profile(CPU, device), replace(base, machine_cores=0)).step_s
    )


def test_towers_that_ask_a_server_at_once_wait_for_each_other() -> None:
    alone, both = (
        predict(profile(CPU, FAST), asked(*towers, window=0, shares=shares))
        for towers, shares in ((("fast",), (1.0,)), (("fast", "fast"), (0.5, 0.5)))
    )
    assert alone.step_s - both.step_s == pytest.approx(1e-5 * 512)  # half the rows are trained, and all are looked up


def test_profiles_are_kept_and_read(tmp_path: Path) -> None:
    path = tmp_path / "job.profile.json"
    whole = profile(CPU, FAST)
    path.write_text(json.dumps(whole.to_dict()), encoding="utf-8")
    assert JobProfile.read(path) == whole
    with pytest.raises(PlanError, match="was not measured on `slow`"):
        whole.of("slow")
    path.write_text('{"version": 99}', encoding="utf-8")
    with pytest.raises(PlanError, match="version 99"):
        JobProfile.read(path)
    path.write_text('{"version": 1}', encoding="utf-8")
    with pytest.raises(PlanError, match="is no profile"):
        JobProfile.read(path)


def test_usages_are_of_whole_nodes() -> None:
    kinds = (
        NodeKind(name="cpu", count=1, price=1, cores=4, memory_bytes=1),
        NodeKind(name="fast", count=1, price=1, cores=2, memory_bytes=1, accelerators=2),
    )
    found = profile(CPU, FAST).usages(cluster=ClusterSpec(name="c", kinds=kinds), rows=1024)
    assert found["lookup"]["cpu"].cpu_s == pytest.approx(2e-7 / 4)
    assert found["tower"]["fast"].device_s == pytest.approx((1e-3 + 1e-5 * 1024) / 1024 / 2)
    assert set(found) == {"read", "parse", "dedup", "lookup", "tower"}
