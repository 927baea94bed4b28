"""What a deep run was and reached: the record behind its `summary.json`. docs/deep.md says what each key means."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path

from rich.table import Table

from hetero.errors import DataError
from hetero.hardware.devices import device_called
from hetero.loops.deep import DeepLog
from hetero.observe.run_folder import read_json, write_json
from hetero.parallel.mesh import place_of
from hetero.parallel.traffic import WORLD
from hetero.planning.deep_run import DeepPrediction, predict_deep
from hetero.records.deep_job import DeepJobSpec
from hetero.records.mesh import DeepPrecision

VERSION = 1
_WARM_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSummary:
    """Keys are stable: later versions add, and rename or remove none.

    losses: nats a token. tokens_per_s: by the median step. matrix_flops: FLOP/s of plain matrix products, all ranks at
    once. mfu: tokens_per_s * flops_per_token / matrix_flops, [0, 1]. bubble: share of forward and backward that the
    ranks of each pipeline stage waited. sent_bytes: of one step, all ranks, by axis of the mesh and by link (`node`: a
    group on one machine, or `network`). peak_bytes: by rank, of the process or its device. seconds: where the ranks'
    time went, all of them together, by span. data_sheet_flops: of all devices, FLOP/s in this precision, 0 where no
    data sheet is known; data_sheet_mfu: as mfu, of it. predicted_*: what `hetero.planning.deep_run` said before the
    first step; assumed: what nothing was measured for.
    """

    name: str
    run_folder: str
    seed: int
    placement: str
    mesh: str
    ranks: int
    parameters: int
    steps: int
    tokens: int
    tokens_per_s: float
    mfu: float
    matrix_flops: float
    flops_per_token: float
    wall_s: float
    final_loss: float | None
    validation_loss: float | None
    evaluations: Sequence[Mapping[str, float]]
    peak_bytes: Mapping[str, int]
    precision: str
    bubble: Mapping[str, float] = field(default_factory=dict)
    sent_bytes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    data_sheet_flops: float = 0.0
    data_sheet_mfu: float | None = None
    predicted_tokens_per_s: float | None = None
    predicted_mfu: float | None = None
    predicted_bubble: Mapping[str, float] = field(default_factory=dict)
    predicted_sent_bytes: Mapping[str, float] = field(default_factory=dict)
    predicted_peak_bytes: Mapping[str, float] = field(default_factory=dict)
    assumed: Sequence[str] = ()
    skipped_steps: int = 0
    restarts: Sequence[str] = ()
    snapshot: str | None = None
    time_to_first_step_s: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    losses: str | None = None
    kind: str = "deep"
    versions: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, object] = field(default_factory=dict)
    finished_at: float = field(default_factory=time.time)
    version: int = VERSION

    def to_dict(self) -> dict[str, object]:
        """The record as `summary.json` holds it."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    def write(self, path: Path) -> None:
        """Write `summary.json`, whole or not at all."""
        write_json(path, self.to_dict())

    @staticmethod
    def read(path: Path) -> DeepSummary:
        """The summary in a file; keys that a later version added are left out. Raises DataError."""
        record = read_json(path)
        known = {entry.name for entry in fields(DeepSummary)}
        try:
            return DeepSummary(**{name: value for name, value in record.items() if name in known})  # type: ignore[arg-type]
        except TypeError as error:
            raise DataError(f"{path}: is no summary of a deep run ({error})") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeed:
    """tokens_per_s of all ranks together, and their share of what plain matrix products reach, measured (mfu) and by
    the data sheet of their devices, where there is one. predicted: before the first step."""

    tokens_per_s: float
    matrix_flops: float
    mfu: float
    data_sheet_flops: float
    predicted: DeepPrediction

    @staticmethod
    def of(job: DeepJobSpec, logs: Sequence[DeepLog]) -> DeepSpeed:
        """From the median time between two steps; evaluations and snapshots lie between few of them."""
        ends = logs[0].step_ends_t
        gaps = sorted(after - before for before, after in pairwise(ends))
        late = sorted(gaps[_WARM_STEPS:]) or gaps
        step_s = late[len(late) // 2] if late else logs[0].step_s
        rate = job.tokens_per_step / step_s if step_s > 0 else 0.0
        matrix_flops = sum(log.rates.matrix_flops for log in logs)
        mfu = rate * job.model.flops_per_token / matrix_flops if matrix_flops else 0.0
        return DeepSpeed(
            tokens_per_s=rate,
            matrix_flops=matrix_flops,
            mfu=mfu,
            data_sheet_flops=data_sheet_flops(job, logs),
            predicted=predict_deep(job, [log.rates for log in logs]),
        )


def data_sheet_flops(job: DeepJobSpec, logs: Sequence[DeepLog]) -> float:
    """FLOP/s of all ranks' devices by their data sheets; 0 when one of them has none."""
    sheets = [device_called(log.rates.device) for log in logs]
    is_half = job.mesh.precision in (DeepPrecision.BF16, DeepPrecision.FP16)
    known = [sheet.half_flops if is_half else sheet.single_flops for sheet in sheets if sheet is not None]
    return sum(known) if len(known) == len(logs) else 0.0


def bubbles(job: DeepJobSpec, logs: Sequence[DeepLog]) -> dict[str, float]:
    """By pipeline rank, the median step of its ranks' mean."""
    found: dict[str, list[float]] = {}
    for rank, log in enumerate(logs):
        late = log.bubbles[_WARM_STEPS:] or log.bubbles
        if late:
            found.setdefault(f"pp/{place_of(rank, job.mesh).pp}", []).append(statistics.median(late))
    return {stage: statistics.fmean(shares) for stage, shares in sorted(found.items())}


def sent_bytes(job: DeepJobSpec, logs: Sequence[DeepLog]) -> dict[str, dict[str, float]]:
    """Bytes of one step by axis and link; an axis's traffic crosses the network when any of its groups does."""
    found: dict[str, dict[str, float]] = {}
    for rank, log in enumerate(logs):
        for axis, sent in log.traffic.sent_bytes.items() if log.traffic else ():
            link = "network" if _crosses(job, logs, rank, axis) else "node"
            links = found.setdefault(axis, {})
            links[link] = links.get(link, 0.0) + sent
    return found


def _crosses(job: DeepJobSpec, logs: Sequence[DeepLog], rank: int, axis: str) -> bool:
    """Whether the group of `rank` along `axis` has ranks on several machines."""
    here = asdict(place_of(rank, job.mesh))
    for other, log in enumerate(logs):
        there = asdict(place_of(other, job.mesh))
        apart = [name for name in there if there[name] != here[name]]
        if (axis == WORLD or apart == [axis]) and log.node != logs[rank].node:
            return True
    return False


def deep_report(summary: DeepSummary) -> Table:
    """The summary as a person reads it."""
    table = Table(title=summary.name, show_header=False, title_justify="left")
    for name, value in deep_facts(summary).items():
        table.add_row(name, value)
    return table


def deep_facts(summary: DeepSummary) -> dict[str, str]:
    """What there is to say of a run, in words."""
    peaks = list(summary.peak_bytes.values())
    promised, predicted_peaks = summary.predicted_tokens_per_s, list(summary.predicted_peak_bytes.values())
    rows = {
        "mesh": summary.mesh,
        "parameters": f"{summary.parameters:,}",
        "steps, tokens": f"{summary.steps:,}, {summary.tokens:,}",
        "training loss": _loss(summary.final_loss),
        "validation loss": _loss(summary.validation_loss),
        "speed": f"{summary.tokens_per_s:,.0f} tokens/s, {summary.mfu:.1%} of {summary.matrix_flops / 1e9:,.0f} "
        f"GFLOP/s measured in {summary.precision} matrix products"
        + (f", {summary.data_sheet_mfu:.1%} of the data sheet" if summary.data_sheet_mfu is not None else ""),
        "speed predicted": ""
        if promised is None
        else f"{promised:,.0f} tokens/s" + "".join(f"; assumed: {each}" for each in summary.assumed),
        "peak memory a rank": _span_of(peaks) + _beside(_span_of(predicted_peaks)),
        "waiting in the pipeline": _listed(summary.bubble, "{:.0%}")
        + _beside(_listed(summary.predicted_bubble, "{:.0%}")),
        "sent a step": _mebibytes({axis: sum(links.values()) for axis, links in summary.sent_bytes.items()})
        + _beside(_mebibytes(summary.predicted_sent_bytes)),
        "seconds": f"{summary.wall_s:,.0f}",
        "run folder": summary.run_folder,
    }
    return {name: value for name, value in rows.items() if value}


def _span_of(sizes: Sequence[float]) -> str:
    return f"{min(sizes) / 2**20:,.0f} to {max(sizes) / 2**20:,.0f} MiB" if sizes else ""


def _listed(values: Mapping[str, float], form: str) -> str:
    return ", ".join(f"{name} {form.format(value)}" for name, value in values.items())


def _mebibytes(sizes: Mapping[str, float]) -> str:
    return _listed({axis: sent / 2**20 for axis, sent in sizes.items()}, "{:,.1f} MiB")


def _beside(told: str) -> str:
    return f" (predicted {told})" if told else ""


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.4f} nats a token (perplexity {math.exp(min(value, 50.0)):,.2f})"
