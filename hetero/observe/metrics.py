"""The metrics of a run that is alive: one table of what each is called and means, and the samples that roles take.

Whoever forwards, stores or draws metrics goes by this table: Prometheus (`actors.metrics`), the event log, the Grafana
dashboard and the page of a run. docs/dashboard.md lists it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

EXPORT_PREFIX = "ray_"
"""What Ray puts before every name on its way to Prometheus."""
ROLE_LABELS = ("run", "role", "index")
"""Labels that every metric has: `run="demo", role="tower", index="0"`."""


class MetricKind(Enum):
    """COUNTER: a total since the role began, that only grows. GAUGE: how something stands now, or stood of late."""

    COUNTER = "counter"
    GAUGE = "gauge"


class Section(Enum):
    """What a metric is about; panels of a dashboard stand together by it."""

    TRAINING = "Training"
    TIME = "Where time goes"
    ROWS = "Rows, tiers, staleness"
    DEEP = "Deep models"
    PROCESSES = "Processes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. unit: of its values, `1` where they are shares, [0, 1]. label: the one of its own, where it has
    several values. roles: who takes it; `driver` is the run as a whole.
    """

    name: str
    kind: MetricKind
    unit: str
    meaning: str
    section: Section
    roles: tuple[str, ...]
    label: str | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        return ROLE_LABELS if self.label is None else (*ROLE_LABELS, self.label)

    @property
    def exported(self) -> str:
        """The name on Prometheus."""
        return EXPORT_PREFIX + self.name


def _counter(name: str, unit: str, meaning: str, section: Section, *roles: str, label: str | None = None) -> Metric:
    return Metric(
        name=name, kind=MetricKind.COUNTER, unit=unit, meaning=meaning, section=section, roles=roles, label=label
    )


def _gauge(name: str, unit: str, meaning: str, section: Section, *roles: str, label: str | None = None) -> Metric:
    return Metric(
        name=name, kind=MetricKind.GAUGE, unit=unit, meaning=meaning, section=section, roles=roles, label=label
    )


_ACTORS = ("sequencer", "reader", "server", "tower", "rank")

STEP = _gauge("hetero_step", "steps", "steps done", Section.TRAINING, "driver", "tower", "rank")
LOSS = _gauge(
    "hetero_loss",
    "nats",
    "training loss of the latest step, a row or a token; of the driver: of the joint batch",
    Section.TRAINING,
    "driver",
    "tower",
    "rank",
)
SAMPLES = _counter("hetero_samples_total", "rows", "rows trained", Section.TRAINING, "tower")
SAMPLES_PER_S = _gauge("hetero_samples_per_second", "rows/s", "rows trained of late", Section.TRAINING, "tower")
AUC = _gauge(
    "hetero_auc", "1", "area under the ROC curve on the test data, once they are scored", Section.TRAINING, "driver"
)
SECONDS = _counter(
    "hetero_seconds_total",
    "s",
    "time in each span, exclusive of spans inside it; `wait.*` are waits",
    Section.TIME,
    *_ACTORS,
    label="span",
)
WAIT_FRACTION = _gauge(
    "hetero_wait_fraction",
    "1",
    "share of the latest time spent waiting, by the role waited for",
    Section.TIME,
    "reader",
    "tower",
    "rank",
    label="awaited",
)
BUSY_FRACTION = _gauge(
    "hetero_busy_fraction", "1", "share of the latest time inside spans of work", Section.TIME, *_ACTORS
)
BYTES = _counter(
    "hetero_bytes_total", "bytes", "payload that towers moved, by path", Section.ROWS, "tower", label="path"
)
ROWS = _gauge("hetero_rows", "rows", "rows held, by the job's table", Section.ROWS, "server", label="table")
TIER_ROWS = _gauge("hetero_tier_rows", "rows", "rows by where they are", Section.ROWS, "server", label="tier")
TIER_HITS = _counter(
    "hetero_tier_hits_total",
    "rows",
    "rows asked for, by where they were; `created` ones were nowhere",
    Section.ROWS,
    "server",
    label="tier",
)
TIER_HIT_RATE = _gauge(
    "hetero_tier_hit_rate",
    "1",
    "share of the rows found of late, by where they were",
    Section.ROWS,
    "server",
    label="tier",
)
DISK_BYTES = _counter(
    "hetero_disk_bytes_total",
    "bytes",
    "whole pages read from and written to SSD",
    Section.ROWS,
    "server",
    label="direction",
)
STALENESS_MEAN = _gauge(
    "hetero_staleness_mean",
    "pushes",
    "pushes by other towers between pull and push of a row, of late",
    Section.ROWS,
    "server",
)
STALENESS_MAX = _gauge("hetero_staleness_max", "pushes", "the most of them so far", Section.ROWS, "server")
TOKENS = _counter("hetero_tokens_total", "tokens", "tokens trained, of all ranks together", Section.DEEP, "rank")
TOKENS_PER_S = _gauge(
    "hetero_tokens_per_second", "tokens/s", "tokens trained of late, of all ranks together", Section.DEEP, "rank"
)
VALIDATION_LOSS = _gauge(
    "hetero_validation_loss", "nats", "loss of the latest validation, a token", Section.DEEP, "rank"
)
MFU = _gauge(
    "hetero_mfu",
    "1",
    "FLOP/s of the model of late / of plain matrix products on this rank's device",
    Section.DEEP,
    "rank",
)
BUBBLE = _gauge(
    "hetero_bubble",
    "1",
    "share of forward and backward that the rank waited for other pipeline stages",
    Section.DEEP,
    "rank",
)
CPU_SECONDS = _counter("hetero_cpu_seconds_total", "s", "CPU time", Section.PROCESSES, *_ACTORS)
RESIDENT_BYTES = _gauge("hetero_resident_bytes", "bytes", "highest resident memory", Section.PROCESSES, *_ACTORS)

METRICS: tuple[Metric, ...] = (
    *(STEP, LOSS, SAMPLES, SAMPLES_PER_S, AUC),
    *(SECONDS, WAIT_FRACTION, BUSY_FRACTION),
    *(BYTES, ROWS, TIER_ROWS, TIER_HITS, TIER_HIT_RATE, DISK_BYTES, STALENESS_MEAN, STALENESS_MAX),
    *(TOKENS, TOKENS_PER_S, VALIDATION_LOSS, MFU, BUBBLE),
    *(CPU_SECONDS, RESIDENT_BYTES),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a metric; of which label, where it has one. Counters: the total so far."""

    metric: Metric
    value: float
    label: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """How a role stands at `t` (unix seconds). role: `tower/0`, or `driver`."""

    role: str
    t: float
    samples: tuple[Sample, ...]

    def to_fields(self) -> dict[str, object]:
        """As a line of the event log holds it: `{"hetero_step": 7.0, "hetero_seconds_total": {"rows.pull": 0.2}}`."""
        fields: dict[str, object] = {}
        for sample in self.samples:
            if sample.label is None:
                fields[sample.metric.name] = sample.value
            else:
                of_labels = fields.setdefault(sample.metric.name, {})
                assert isinstance(of_labels, dict)
                of_labels[sample.label] = sample.value
        return fields


class Trend:
    """Totals that grow, seen every so often: what they grew by since the last look. The first look tells nothing."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = {}
        self._t: float | None = None

    def look(self, t: float, totals: Mapping[str, float]) -> Growth | None:
        """What grew since the last look; None at the first one, and when no time has passed."""
        before, self._totals = self._totals, dict(totals)
        since, self._t = self._t, t
        if since is None or t <= since:
            return None
        grown = {name: total - before.get(name, 0.0) for name, total in totals.items()}
        return Growth(seconds=t - since, grown=grown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What totals grew by within `seconds`."""

    seconds: float
    grown: Mapping[str, float]

    def rate(self, name: str) -> float:
        """Growth a second."""
        return self.grown.get(name, 0.0) / self.seconds

    def share(self, name: str, *, of: Iterable[str]) -> float | None:
        """Growth of one as a share of the growth of several; None when those did not grow."""
        whole = sum(self.grown.get(each, 0.0) for each in of)
        return self.grown.get(name, 0.0) / whole if whole > 0 else None
