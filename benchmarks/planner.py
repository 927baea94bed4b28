"""The planner against closed forms, published figures, exhaustive search, and Gloo on this machine.

    python -m benchmarks.planner [--quick] [--json] [--save]

Pipelines: simulated bubbles and live activations against closed forms. Memory and rates: one or two parameters fitted
to published runs, all named. ERNIE 230B on 64 x 8 V100: the published table of traffic as published and corrected,
memory, bubbles and ordering of the three strategies at stated micro-batch counts, and a fit of the published rate that
is labelled as such, with the sensitivity of each parameter. Splits of a job over kinds of node: the exact search
against the schedulers of HeterPS, at size, and two published cases. --quick plans 1e12 parameters on fewer machines.
With --save the leads are drawn too, as SVG.
"""

from __future__ import annotations

import datetime
import sys
import time
from dataclasses import fields, replace

from benchmarks.planner_fits import ROUNDS, Fit, Knobs, bert_large_curve, gpt3_points, solve
from benchmarks.planner_gloo import gloo
from benchmarks.planner_plots import draw_leads
from benchmarks.planner_published import (
    BERT_LARGE_MB,
    FOUR_D_LEAD,
    FOUR_D_TOKENS_PER_S,
    GPT3_V100,
    STRATEGIES,
    SWAPPED_146B,
)
from benchmarks.planner_split import splits
from benchmarks.report import RESULTS, Report, arguments, finish
from hetero.hardware.devices import device, link
from hetero.planning.memory import peak_memory
from hetero.planning.mesh import DeviceGrid
from hetero.planning.mesh_search import search
from hetero.planning.pipeline import (
    StageTime,
    Timeline,
    gpipe_bubble_share,
    interleaved_bubble_share,
    live_micro_batches,
    simulate,
)
from hetero.planning.schedules import Pipeline, Schedule
from hetero.planning.shape import TransformerShape
from hetero.planning.strategy_table import as_corrected, as_published

_GB, _GIB = 1e9, 1 << 30
PP64, MP8, FOUR_D = STRATEGIES
COUNTS = (16, 64, 104, 256)
TRILLION = TransformerShape(layers=128, hidden=25600, heads=160, vocabulary=51200, sequence=2048)
"""Megatron's largest (2104.04473, table 1): 1,008B parameters."""


def main() -> int:
    options = arguments(__doc__ or "")
    report = Report("planner")
    pipelines(report)
    memory_curve(report)
    calibrated = rates(report)
    strategy_tables(report, calibrated)
    fit_of_the_published_rate(report, calibrated)
    trillion(report, quick=options.quick)
    splits(report, row, quick=options.quick)
    gloo(report, row)
    if options.save:
        RESULTS.mkdir(exist_ok=True)
        name = f"{datetime.date.today().isoformat()}-planner{'-quick' if options.quick else ''}.svg"
        draw_leads(calibrated, RESULTS / name)
    return finish(report, options)


def row(report: Report, part: str, case: str, figure: str, value: object, published: object = "") -> None:
    report.add(part=part, case=case, figure=figure, value=value, published=published)


def pipelines(report: Report) -> None:
    """Bubbles and live activations of simulated schedules."""
    off = {"gpipe": 0.0, "1f1b": 0.0, "interleaved": 0.0, "live": 0.0}
    for ranks, count in ((2, 4), (4, 8), (8, 32), (16, 64)):
        plain, gpipe = (simulated(each, ranks, count) for each in (Schedule.ONE_F_ONE_B, Schedule.GPIPE))
        closed = gpipe_bubble_share(ranks, count)
        off["gpipe"] = max(off["gpipe"], abs(gpipe.bubble_share - closed))
        off["1f1b"] = max(off["1f1b"], abs(plain.bubble_share - closed))
        for chunks in (2, 4):
            split = simulated(Schedule.INTERLEAVED, ranks, count, chunks=chunks)
            expected = interleaved_bubble_share(ranks, count, chunks)
            off["interleaved"] = max(off["interleaved"], abs(split.bubble_share - expected))
        for rank in range(ranks):
            lives = plain.peak_activations(rank) - live_micro_batches(ranks, count, rank)
            off["live"] = max(off["live"], abs(lives), abs(gpipe.peak_activations(rank) - count))
    for schedule, chunks in (*((each, 1) for each in (Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE)),
                             (Schedule.INTERLEAVED, 2), (Schedule.ZERO_BUBBLE_V, 2)):  # fmt: skip
        timeline = simulated(schedule, 8, 32, chunks=chunks)
        case = f"{schedule.value}, 8 ranks, 32 micro-batches, {chunks} stages a rank"
        row(report, "pipeline", case, "bubble share", timeline.bubble_share)
        row(report, "pipeline", case, "live micro-batches of rank 0", timeline.peak_activations(0) / chunks)
    report.check("bubble of GPipe: distance from (p-1)/(m+p-1)", off["gpipe"], at_most=1e-9)
    report.check("bubble of 1F1B: distance from (p-1)/(m+p-1)", off["1f1b"], at_most=1e-9)
    report.check("bubble of interleaved: distance from 1/v of 1F1B's", off["interleaved"], at_most=1e-9)
    report.check("live micro-batches: distance from pp - rank (1F1B) and m (GPipe)", off["live"], at_most=0)


def simulated(schedule: Schedule, ranks: int, count: int, *, chunks: int = 1) -> Timeline:
    pipeline = Pipeline(schedule=schedule, ranks=ranks, micro_batches=count, stages_per_rank=chunks)
    stage = StageTime(forward_s=1 / chunks, backward_s=2 / chunks)
    return simulate(pipeline, stages=[stage] * pipeline.stages)


def memory_curve(report: Report) -> None:
    fit = bert_large_curve()
    for (case, value), published in zip(fit.predicted.items(), BERT_LARGE_MB.values(), strict=True):
        row(report, "BERT-Large sharding", case, "MiB", value, published)
    _parameters(report, "BERT-Large sharding", fit)
    report.check("BERT-Large sharding memory, 1 parameter: worst error", fit.worst, at_most=0.1)


def rates(report: Report) -> Knobs:
    """GPT-3 on V100 by the mesh as published, and with the last point's MP and PP swapped. The latter calibrates."""
    published = gpt3_points(GPT3_V100)
    swapped = gpt3_points((*GPT3_V100[:3], SWAPPED_146B), exposed=1.0)
    for title, fit, points in (
        ("GPT-3 as published", published, GPT3_V100),
        ("GPT-3, MP and PP of 146B swapped", swapped, (*GPT3_V100[:3], SWAPPED_146B)),
    ):
        for point in points:
            row(report, title, point.name, "TFLOP/s a device", fit.predicted[point.name], point.tflops)
        _parameters(report, title, fit)
    report.check("GPT-3 rates, meshes as published, 2 parameters: worst error", published.worst, at_most=0.1)
    report.check("GPT-3 rates, 146B read as MP8 PP32, 1 parameter: worst error", swapped.worst, at_most=0.1)
    row(report, "GPT-3", "assumed", "micro-batches / pipeline degree", float(ROUNDS))
    return Knobs(efficiency=swapped.parameters["efficiency"], micro_batches=104)


def _parameters(report: Report, title: str, fit: Fit) -> None:
    for name, value in fit.parameters.items():
        row(report, title, "fitted", name, value)


def strategy_tables(report: Report, calibrated: Knobs) -> None:
    """Traffic as published and corrected; memory, bubbles and rates by the calibrated model."""
    fits = True
    for count in COUNTS:
        knobs = replace(calibrated, micro_batches=count)
        for name in STRATEGIES:
            plan, step = knobs.plan(name), knobs.step(name)
            case = f"{name}, m = {count}"
            for title, table in (("as published", as_published(plan)), ("corrected", as_corrected(plan))):
                row(report, f"230B {title}", case, "GB between machines", table.between_bytes / _GB)
                row(report, f"230B {title}", case, "GB inside", table.inside_bytes / _GB)
                row(report, f"230B {title}", case, "bubble (closed form)", table.bubble_share)
            memory = peak_memory(plan)
            fits &= memory.fits_in(plan.grid.device.memory_bytes)
            row(report, "230B calibrated", case, "GiB a device", memory.total / _GIB)
            row(report, "230B calibrated", case, "bubble (with transfers, uneven stages)", step.bubble_share)
            row(report, "230B calibrated", case, "tokens/s", step.tokens_per_s)
        row(report, "230B calibrated", f"m = {count} in each pipeline", "order", _order(knobs))
        batch = 4 * count
        row(report, "230B calibrated", f"global batch {batch}", "order", _order(knobs, batch=batch))
    report.check("230B: every strategy fits in 32 GB", float(fits), at_least=1)
    lead = solve(lambda count: _lead(calibrated, count, PP64), FOUR_D_LEAD, low=16, high=1000)
    row(report, "230B calibrated", "4D / PP64 at equal m", "m at which 4D leads by 23.7%", lead, "not given")
    report.check("230B: m at which 4D leads PP64 by 23.7% / 104 of the bubbles alone", lead / 104, at_least=0.9)
    flip = solve(lambda batch: _lead_at_equal_batch(calibrated, batch, MP8), 1.0, low=64, high=4096)
    row(report, "230B calibrated", "4D / MP8 at the same global batch", "batch above which 4D is ahead", flip)
    report.check("230B: global batch up to which MP8 is ahead of 4D", flip, at_least=256)
    behind = min(_lead(calibrated, count, other) for count in COUNTS for other in (PP64, MP8))
    report.check("230B: least lead of 4D at equal m", behind, at_least=1)


def _lead_at_equal_batch(knobs: Knobs, batch: float, over: str) -> float:
    rates = _rates(knobs, batch=batch)
    return rates[FOUR_D] / rates[over]


def _rates(knobs: Knobs, *, batch: float | None = None) -> dict[str, float]:
    """Tokens/s at equal m, or at an equal global batch, when each strategy has the m that its data ways leave."""
    return {
        name: replace(knobs, micro_batches=batch / mesh.data_ways if batch else knobs.micro_batches).tokens_per_s(name)
        for name, mesh in STRATEGIES.items()
    }


def _order(knobs: Knobs, *, batch: int | None = None) -> str:
    rates = _rates(knobs, batch=batch)
    return " > ".join(f"{name} {rates[name]:,.0f}" for name in sorted(rates, key=rates.__getitem__, reverse=True))


def _lead(knobs: Knobs, count: float, over: str) -> float:
    at = replace(knobs, micro_batches=count)
    return at.tokens_per_s(FOUR_D) / at.tokens_per_s(over)


def fit_of_the_published_rate(report: Report, calibrated: Knobs) -> None:
    """A fit, not a prediction: two parameters more than the calibration has, and m = 104 as the bubbles suggest."""

    def rate(efficiency: float) -> float:
        return replace(calibrated, efficiency=efficiency).tokens_per_s(FOUR_D)

    part = "230B FIT of 8,698 tokens/s"
    row(report, part, "without the fit", "tokens/s", calibrated.tokens_per_s(FOUR_D), FOUR_D_TOKENS_PER_S)
    slower = replace(calibrated, efficiency=solve(rate, FOUR_D_TOKENS_PER_S, low=0.1, high=0.9))

    def lead(tp8_efficiency: float) -> float:
        return _lead(replace(slower, tp8_efficiency=tp8_efficiency), slower.micro_batches, MP8)

    fitted = replace(slower, tp8_efficiency=solve(lead, FOUR_D_LEAD, low=0.5, high=1.0))
    rates = _rates(fitted)
    row(report, part, "fitted", "tokens/s", rates[FOUR_D], FOUR_D_TOKENS_PER_S)
    for other in (PP64, MP8):
        row(report, part, f"4D / {other}", "lead", rates[FOUR_D] / rates[other], f">= {FOUR_D_LEAD}")
    for name in (each.name for each in fields(Knobs)):
        changed = replace(fitted, **{name: 1.1 * getattr(fitted, name)})
        kind = {"efficiency": "fitted", "tp8_efficiency": "fitted", "micro_batches": "assumed"}.get(name, "calibrated")
        row(report, part, f"{name} ({kind})", "value", float(getattr(fitted, name)))
        share = changed.tokens_per_s(FOUR_D) / rates[FOUR_D] - 1
        row(report, part, f"{name} +10%", "tokens/s of 4D, change in %", 100 * share)
        for other in (PP64, MP8):
            change = changed.tokens_per_s(FOUR_D) / changed.tokens_per_s(other) - rates[FOUR_D] / rates[other]
            row(report, part, f"{name} +10%", f"lead over {other}, change in points", 100 * change)
    report.check("230B FIT: tokens/s of 4D / 8,698: distance from 1", abs(rates[FOUR_D] / 8698 - 1), at_most=0.001)


def trillion(report: Report, *, quick: bool) -> None:
    """A plan for 1e12 parameters; quick: on an eighth of the machines, of twice the memory."""
    machines, batch, name = (64, 512, "h200") if quick else (512, 2048, "a100-80gb")
    grid = DeviceGrid(
        machines=machines, per_machine=8, device=device(name), inside=link("nvlink3"), between=link("8x-ib-hdr")
    )
    started = time.process_time()
    found = search(TRILLION, grid=grid, global_batch=batch)
    seconds = time.process_time() - started
    best = found.best[0]
    case = f"{TRILLION.parameters / 1e12:.3f}e12 parameters on {machines} x 8 {name}"
    row(report, "search", case, "best", best.describe())
    row(report, "search", case, "step, s", best.time.total_s)
    row(report, "search", case, "model FLOPs utilization", best.time.utilization)
    row(report, "search", case, "GiB a device", best.memory.total / _GIB)
    row(report, "search", case, "meshes rejected with a reason", len(found.rejections))
    row(report, "search", case, "plans considered", found.considered)
    report.check("1e12 parameters planned: seconds of CPU", seconds, at_most=20)


if __name__ == "__main__":
    sys.exit(main())
