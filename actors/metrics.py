"""Metrics on their way to Prometheus: pulses of this process's roles, forwarded to Ray."""

from __future__ import annotations

import math

from ray.util.metrics import Counter, Gauge

from hetero.observe.metrics import Metric, MetricKind, Pulse


class RayMetrics:
    """The metrics of one actor, or of the driver, as Ray exports them. run: its name, stands in their labels."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._of: dict[str, Counter | Gauge] = {}
        self._totals: dict[tuple[str, str | None], float] = {}

    def publish(self, pulse: Pulse) -> Pulse:
        """Let Ray have a pulse's values; the pulse."""
        role, _, index = pulse.role.partition("/")
        tags = {"run": self._run, "role": role, "index": index or "0"}
        for sample in pulse.samples:
            metric, labels = self._metric(sample.metric), dict(tags)
            if sample.metric.label is not None:
                labels[sample.metric.label] = str(sample.label)
            if isinstance(metric, Gauge):
                metric.set(sample.value if math.isfinite(sample.value) else math.nan, tags=labels)
                continue
            key = (sample.metric.name, sample.label)
            more = sample.value - self._totals.get(key, 0.0)
            if more > 0:
                self._totals[key] = sample.value
                metric.inc(more, tags=labels)
        return pulse

    def _metric(self, metric: Metric) -> Counter | Gauge:
        if metric.name not in self._of:
            kind = Counter if metric.kind is MetricKind.COUNTER else Gauge
            description = f"{metric.meaning} ({metric.unit})"
            self._of[metric.name] = kind(metric.name, description=description, tag_keys=metric.labels)
        return self._of[metric.name]
