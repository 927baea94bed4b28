"""How every role stands, as samples of the metrics: taken every few seconds at the driver's request, never in a step.

Consumes   what a role keeps anyway: its span clock, its log, its counters
Produces   Pulses (`hetero.observe.metrics`)
Waits for  nobody
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from hetero.hardware.probe import peak_rss_bytes
from hetero.observe import metrics as names
from hetero.observe.metrics import Growth, Metric, Pulse, Sample, Trend
from hetero.observe.spans import SpanTotals

if TYPE_CHECKING:  # roles without torch need not load it
    from hetero.exchange.server import ServerUse
    from hetero.loops.deep import DeepLog
    from hetero.loops.results import StepLog
    from hetero.records.deep_job import DeepJobSpec

PULSE_EVERY_S = 2.0
DRIVER = "driver"
_TIERS = ("memory", "ssd")


class RolePulses:
    """Pulses of one role, `tower/0`; what is `of late` is since the pulse before. now, cpu_s: clocks, in seconds."""

    def __init__(
        self,
        role: str,
        *,
        now: Callable[[], float] = time.time,
        cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        self.role = role
        self._now = now
        self._cpu_s = cpu_s
        self._trend = Trend()

    def of_role(self, spans: SpanTotals) -> Pulse:
        """A reader or the sequencer."""
        t, growth = self._look(spans, {})
        return self._pulse(t, [*self._of_time(spans, growth), *_waits(growth, spans)])

    def of_tower(self, log: StepLog, *, spans: SpanTotals, traffic: Mapping[str, int]) -> Pulse:
        """A tower: steps and rows of its log, bytes by path."""
        t, growth = self._look(spans, {"rows": float(log.rows)})
        samples = [
            Sample(names.STEP, len(log.losses)),
            Sample(names.SAMPLES, log.rows),
            *_labelled(names.BYTES, traffic),
            *self._of_time(spans, growth),
            *_waits(growth, spans),
        ]
        if log.losses:
            samples.append(Sample(names.LOSS, log.losses[-1]))
        if growth is not None:
            samples.append(Sample(names.SAMPLES_PER_S, growth.rate("rows")))
        return self._pulse(t, samples)

    def of_server(self, use: ServerUse, *, spans: SpanTotals) -> Pulse:
        """A server: rows, and where it has them, how stale they were, tiers and disk."""
        pushes, stale = sum(use.staleness), sum(n * count for n, count in enumerate(use.staleness))
        hits = {tier: float(use.tiers.get(f"{tier}_hits", 0)) for tier in _TIERS}
        t, growth = self._look(spans, {**hits, "pushes": float(pushes), "stale": float(stale)})
        samples = [*_labelled(names.ROWS, use.rows), *self._of_time(spans, growth)]
        if use.staleness:
            mean = stale / pushes if growth is None else growth.share("stale", of=["pushes"])
            samples += [] if mean is None else [Sample(names.STALENESS_MEAN, mean)]
            samples.append(Sample(names.STALENESS_MAX, len(use.staleness) - 1))
        if use.tiers:
            samples += self._of_tiers(use.tiers, hits, growth)
        return self._pulse(t, samples)

    def of_rank(self, log: DeepLog, *, spans: SpanTotals, job: DeepJobSpec) -> Pulse:
        """A rank of a deep model."""
        tokens = log.steps * job.tokens_per_step
        t, growth = self._look(spans, {"tokens": float(tokens)})
        samples = [
            Sample(names.STEP, log.first_step + log.steps),
            Sample(names.TOKENS, tokens),
            *self._of_time(spans, growth),
            *_waits(growth, spans),
        ]
        if log.losses:
            samples.append(Sample(names.LOSS, log.losses[-1]))
        if log.evaluations:
            samples.append(Sample(names.VALIDATION_LOSS, log.evaluations[-1].loss))
        if log.bubbles:
            samples.append(Sample(names.BUBBLE, log.bubbles[-1]))
        if growth is not None:
            tokens_per_s = growth.rate("tokens")
            device_flops = log.rates.matrix_flops * job.mesh.ranks
            samples.append(Sample(names.TOKENS_PER_S, tokens_per_s))
            if device_flops:
                samples.append(Sample(names.MFU, tokens_per_s * job.model.flops_per_token / device_flops))
        return self._pulse(t, samples)

    def _look(self, spans: SpanTotals, totals: Mapping[str, float]) -> tuple[float, Growth | None]:
        t = self._now()
        return t, self._trend.look(t, {**totals, **spans.by_name()})

    def _of_time(self, spans: SpanTotals, growth: Growth | None) -> Iterator[Sample]:
        yield from _labelled(names.SECONDS, spans.by_name())
        if growth is not None:
            worked = sum(growth.grown[span.value] for span in spans.seconds if span.awaited is None)
            yield Sample(names.BUSY_FRACTION, min(1.0, worked / growth.seconds))

    def _of_tiers(self, tiers: Mapping[str, int], hits: Mapping[str, float], growth: Growth | None) -> Iterator[Sample]:
        yield from _labelled(names.TIER_HITS, {**hits, "created": tiers["created"]})
        for tier in ("memory", "ssd", "leased"):
            yield Sample(names.TIER_ROWS, tiers[f"{tier}_rows"], tier)
        for direction in ("read", "written"):
            yield Sample(names.DISK_BYTES, tiers[f"disk_{direction}_bytes"], direction)
        for tier in _TIERS:
            rate = None if growth is None else growth.share(tier, of=_TIERS)
            if rate is not None:
                yield Sample(names.TIER_HIT_RATE, rate, tier)

    def _pulse(self, t: float, samples: Iterable[Sample]) -> Pulse:
        of_process = (Sample(names.CPU_SECONDS, self._cpu_s()), Sample(names.RESIDENT_BYTES, peak_rss_bytes()))
        return Pulse(role=self.role, t=t, samples=(*samples, *of_process))


def driver_pulse(*, step: int, loss: float | None, auc: float | None = None) -> Pulse:
    """The run as a whole."""
    samples = [Sample(names.STEP, step)]
    samples += [] if loss is None else [Sample(names.LOSS, loss)]
    samples += [] if auc is None else [Sample(names.AUC, auc)]
    return Pulse(role=DRIVER, t=time.time(), samples=tuple(samples))


def _labelled(metric: Metric, values: Mapping[str, float] | Mapping[str, int]) -> Iterator[Sample]:
    for label, value in values.items():
        yield Sample(metric, value, label)


def _waits(growth: Growth | None, spans: SpanTotals) -> Iterator[Sample]:
    """Share of the latest time spent waiting, by role. A wait under way counts once it is over."""
    if growth is None:
        return
    for span in spans.seconds:
        if span.awaited is not None:
            yield Sample(names.WAIT_FRACTION, min(1.0, growth.grown[span.value] / growth.seconds), span.awaited)
