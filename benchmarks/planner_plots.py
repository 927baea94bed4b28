"""Plots of the planner's benchmark as self-contained SVG: bars, drawn as the other benchmarks draw theirs."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from benchmarks.planner_fits import Knobs
from benchmarks.planner_published import FOUR_D_LEAD, STRATEGIES

COUNTS = (8, 16, 32, 48, 64, 80, 96, 104, 112, 128, 192, 256, 384, 512, 1024)
_WIDEST = 1.0
_PP64, _MP8, _FOUR_D = STRATEGIES


def draw_leads(calibrated: Knobs, path: Path) -> None:
    """4D / each 3D strategy: at equal m in each pipeline, and at the same global batch."""
    console = Console(record=True, width=110, file=io.StringIO(), highlight=False)
    for other in (_PP64, _MP8):
        leads = {count: _ratio(calibrated, other, count, count) for count in COUNTS}
        _bars(console, f"4D / {other} at equal m in each pipeline", leads)
    for other in (_PP64, _MP8):
        ways = {name: STRATEGIES[name].data_ways for name in (_FOUR_D, other)}
        leads = {
            batch: _ratio(calibrated, other, batch / ways[_FOUR_D], batch / ways[other])
            for batch in (4 * count for count in COUNTS)
        }
        _bars(console, f"4D / {other} at the same global batch", leads)
    console.save_svg(str(path), title="planner")


def _ratio(knobs: Knobs, other: str, own_count: float, other_count: float) -> float:
    own = replace(knobs, micro_batches=own_count).tokens_per_s(_FOUR_D)
    return own / replace(knobs, micro_batches=other_count).tokens_per_s(other)


def _bars(console: Console, title: str, leads: dict[int, float]) -> None:
    table = Table(title=f"{title}: % ahead, + from the middle; - behind", title_justify="left", box=None)
    table.add_column("m" if "equal m" in title else "batch", justify="right")
    table.add_column("")
    table.add_column("ratio", justify="right")
    table.add_column("")
    for count, ratio in leads.items():
        lead = max(-_WIDEST, min(_WIDEST, ratio - 1))
        bar = Bar(2 * _WIDEST, min(_WIDEST, _WIDEST + lead), max(_WIDEST, _WIDEST + lead), width=70)
        note = "leads by 23.7% or more" if ratio >= FOUR_D_LEAD else "behind" if ratio < 1 else ""
        table.add_row(f"{count}", bar, f"{ratio:.3f}", note)
    console.print(table)
    console.print()
