"""The summary of a run: the typed record behind `summary.json`. docs/summary.md says what each key means."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from hetero.errors import DataError
from hetero.observe.run_folder import read_json, write_json

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Quality on a data set. A metric without a value (one class only, say) is None; `warnings` says why.

    auc, gauc, mrr, ndcg (of the best ndcg_at): [0, 1]. logloss: nats a row. normalized_entropy: logloss / entropy of
    the mean label. calibration: mean prediction / mean label. samples: rows scored. seconds: spent scoring.
    """

    auc: float | None
    logloss: float | None
    samples: int
    normalized_entropy: float | None = None
    calibration: float | None = None
    gauc: float | None = None
    ndcg: float | None = None
    ndcg_at: int | None = None
    mrr: float | None = None
    auc_bucketed: float | None = None
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """The record as JSON holds it."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The simple tower trained beside the job's own, on the same features, split, seed and epochs."""

    name: str
    auc: float | None
    logloss: float | None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a finished run was and reached. Keys are stable: later versions add, and rename or remove none.

    Scores are those of the test data, None without any. Seconds are exclusive, see `SpanClock`.
    """

    name: str
    run_folder: str
    seed: int
    placement: str
    steps: int
    samples: int
    samples_per_s: float
    wall_s: float
    auc: float | None = None
    logloss: float | None = None
    normalized_entropy: float | None = None
    calibration: float | None = None
    gauc: float | None = None
    ndcg: float | None = None
    ndcg_at: int | None = None
    mrr: float | None = None
    auc_bucketed: float | None = None
    test_samples: int = 0
    final_loss: float | None = None
    time_to_first_step_s: float | None = None
    precision: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    window: Mapping[str, object] = field(default_factory=dict)
    wait_fraction: float = 0.0
    speed: Mapping[str, object] = field(default_factory=dict)
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    waits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    mode: str = "sync"
    staleness: Mapping[str, object] = field(default_factory=dict)
    snapshots: Mapping[str, object] = field(default_factory=dict)
    servers: tuple[Mapping[str, object], ...] = ()
    recoveries: tuple[Mapping[str, object], ...] = ()
    bytes: Mapping[str, int] = field(default_factory=dict)
    peak_rss_bytes: Mapping[str, int] = field(default_factory=dict)
    tiers: Mapping[str, float] = field(default_factory=dict)
    policies: Mapping[str, int] = field(default_factory=dict)
    object_store: Mapping[str, int | None] = field(default_factory=dict)
    predicted_samples_per_s: float | None = None
    nodes: Mapping[str, str] = field(default_factory=dict)
    malformed: int = 0
    rejected_gradients: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    losses: str | None = None
    step_ends: str | None = None
    baseline: Baseline | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, object] = field(default_factory=dict)
    finished_at: float = field(default_factory=time.time)
    version: int = VERSION

    def to_dict(self) -> dict[str, object]:
        """The record as `summary.json` holds it, in the order of its fields."""
        record: dict[str, object] = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        if self.baseline is not None:
            record["baseline"] = {entry.name: getattr(self.baseline, entry.name) for entry in fields(Baseline)}
        return record

    def write(self, path: Path) -> None:
        """Write `summary.json`, whole or not at all."""
        write_json(path, self.to_dict())

    @staticmethod
    def read(path: Path) -> Summary:
        """The summary in a file; keys that a later version added are left out.

        Raises DataError when the file cannot be read, lacks keys, or is of another version.
        """
        record = read_json(path)
        if record.get("version") != VERSION:
            raise DataError(f"{path}: is of version {record.get('version')}, this build reads version {VERSION}")
        known = {entry.name for entry in fields(Summary)}
        kept: dict[str, object] = {name: value for name, value in record.items() if name in known}
        try:
            baseline = kept.pop("baseline", None)
            kept["baseline"] = None if baseline is None else Baseline(**baseline)  # type: ignore[arg-type]
            for name in ("warnings", "recoveries", "servers", "devices"):
                kept[name] = tuple(kept.get(name, ()))  # type: ignore[arg-type]
            return Summary(**kept)  # type: ignore[arg-type]
        except TypeError as error:
            raise DataError(f"{path}: is no summary of a run ({error})") from error
