"""What roles tell of themselves: totals as they are, shares and rates since the pulse before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hetero.exchange.server import RowServer, ServerUse
from hetero.loops.deep import DeepLog, Evaluation
from hetero.loops.pulses import RolePulses, driver_pulse
from hetero.loops.results import StepLog
from hetero.observe.metrics import METRICS, Pulse
from hetero.observe.spans import Span, SpanTotals
from hetero.planning.deep_run import RankRates
from hetero.records.deep_job import DeepJobSpec, TextSpec
from hetero.records.mesh import DeepOptimizerSpec, MeshSpec
from hetero.records.transformer import TransformerSpec
from tests.support.tiered_jobs import job_of, tiered


class Clock:
    """Seconds that the test sets."""

    t = 0.0

    def __call__(self) -> float:
        return self.t


def spans(**seconds: float) -> SpanTotals:
    of = {Span[name]: value for name, value in seconds.items()}
    return SpanTotals(seconds=of, counts=dict.fromkeys(of, 1))


def taker(role: str) -> tuple[RolePulses, Clock]:
    clock = Clock()
    return RolePulses(role, now=clock, cpu_s=lambda: 1.5), clock


def told(pulse: Pulse) -> dict[str, object]:
    names = {metric.name for metric in METRICS}
    fields = pulse.to_fields()
    assert set(fields) <= names
    kind = pulse.role.partition("/")[0]
    assert all(kind in sample.metric.roles for sample in pulse.samples)
    return fields


def test_a_tower_tells_rows_a_second_and_whom_it_waited_for() -> None:
    pulses, clock = taker("tower/1")
    log = StepLog(losses=[0.7], rows=100)
    first = told(pulses.of_tower(log, spans=spans(TOWER_STEP=1.0, WAIT_SERVER=0.5), traffic={"pulled": 8}))
    assert first["hetero_samples_total"] == 100
    assert first["hetero_bytes_total"] == {"pulled": 8}
    assert first["hetero_loss"] == 0.7
    assert "hetero_samples_per_second" not in first
    clock.t, log.rows = 4.0, 500
    second = told(pulses.of_tower(log, spans=spans(TOWER_STEP=3.0, WAIT_SERVER=1.5), traffic={"pulled": 8}))
    assert second["hetero_samples_per_second"] == 100.0
    assert second["hetero_wait_fraction"] == {"server": 0.25}
    assert second["hetero_busy_fraction"] == 0.5
    assert second["hetero_cpu_seconds_total"] == 1.5


def test_a_server_tells_hit_rates_and_staleness_of_late() -> None:
    pulses, clock = taker("server/0")
    tiers = {"memory_hits": 10, "ssd_hits": 10, "created": 0, "memory_rows": 5, "ssd_rows": 7, "leased_rows": 1}
    tiers |= {"disk_read_bytes": 64, "disk_written_bytes": 32}
    use = ServerUse(rows={"deep": 12}, staleness=(6, 2), tiers=tiers)
    first = told(pulses.of_server(use, spans=spans(ROWS_PULL=0.1)))
    assert first["hetero_staleness_mean"] == 0.25
    assert first["hetero_tier_hits_total"] == {"memory": 10, "ssd": 10, "created": 0}
    clock.t = 2.0
    more = replace(use, staleness=(6, 4, 2), tiers={**tiers, "memory_hits": 40, "ssd_hits": 20, "created": 10})
    second = told(pulses.of_server(more, spans=spans(ROWS_PULL=0.1)))
    assert second["hetero_staleness_mean"] == pytest.approx(6 / 4)
    assert second["hetero_staleness_max"] == 2
    assert second["hetero_tier_hit_rate"] == {"memory": 0.75, "ssd": 0.25}
    assert second["hetero_tier_rows"] == {"memory": 5, "ssd": 7, "leased": 1}
    assert second["hetero_disk_bytes_total"] == {"read": 64, "written": 32}


def test_a_server_without_tiers_and_staleness_tells_neither() -> None:
    pulses, _ = taker("server/0")
    fields = told(pulses.of_server(ServerUse(rows={"deep": 3}, staleness=(), tiers={}), spans=SpanTotals()))
    assert not [name for name in fields if "tier" in name or "stale" in name or "disk" in name]


def test_a_servers_use_is_that_of_its_state(tmp_path: object) -> None:
    server = RowServer(tiered(job_of(tmp_path), tmp_path))  # type: ignore[arg-type]
    try:
        use, state = server.use(), server.state()
        assert set(use.rows) == {"wide", "deep"}
        assert sum(use.rows.values()) == sum(state.rows.values())
        assert use.tiers == state.tiers
    finally:
        server.close()


def test_a_rank_tells_tokens_a_second_and_mfu() -> None:
    job = DeepJobSpec(
        name="small",
        seed=1,
        text=TextSpec(train="t", validation="v", vocabulary=16),
        model=TransformerSpec(layers=2, width=16, heads=2, kv_heads=2, hidden=32, vocabulary=16, context=8),
        mesh=MeshSpec(dp=2),
        optimizer=DeepOptimizerSpec(steps=6),
        batch_size=4,
        steps=6,
    )
    pulses, clock = taker("rank/0")
    log = DeepLog(first_step=10, rates=RankRates(matrix_flops=1e6))
    told(pulses.of_rank(log, spans=SpanTotals(), job=job))
    clock.t = 2.0
    log.losses += [2.0, 1.5]
    log.bubbles.append(0.25)
    log.evaluations.append(Evaluation(step=12, loss=1.75, targets=32))
    fields = told(pulses.of_rank(log, spans=spans(TOWER_STEP=1.0, WAIT_TOWERS=0.5), job=job))
    assert fields["hetero_step"] == 12
    assert fields["hetero_tokens_total"] == 2 * job.tokens_per_step
    assert fields["hetero_tokens_per_second"] == job.tokens_per_step
    assert fields["hetero_mfu"] == pytest.approx(job.tokens_per_step * job.model.flops_per_token / 2e6)
    assert (fields["hetero_validation_loss"], fields["hetero_bubble"]) == (1.75, 0.25)
    assert fields["hetero_wait_fraction"] == {"towers": 0.25}


def test_the_driver_tells_the_auc_once_it_is_known() -> None:
    assert told(driver_pulse(step=3, loss=None)) == {"hetero_step": 3}
    assert told(driver_pulse(step=3, loss=0.5, auc=0.75)) == {"hetero_step": 3, "hetero_loss": 0.5, "hetero_auc": 0.75}
