"""`hetero tiers`: what budgets of memory come to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hetero.errors import UserError
from pipelines.options import AsJson, Overrides
from pipelines.output import Output
from pipelines.values import as_bytes


def tiers(
    path: Annotated[Path, typer.Argument(metavar="JOB", help="A job file, or the folder of a finished run.")],
    memory: Annotated[
        list[str] | None,
        typer.Option("--memory", metavar="SIZE", help="Memory of one server, such as 8GiB; may be given many times."),
    ] = None,
    ssd: Annotated[str | None, typer.Option("--ssd", metavar="SIZE", help="SSD of one server.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Steps to follow. Default: the job's.")] = None,
    window: Annotated[int | None, typer.Option("--window", min=0, help="Steps of a window; 0 for none.")] = None,
    sample: Annotated[
        float | None, typer.Option("--sample", min=0.0, max=1.0, help="Share of the keys that takes part.")
    ] = None,
    zipf: Annotated[
        float | None, typer.Option("--zipf", min=0.0, metavar="S", help="Made ids by this law instead of the data.")
    ] = None,
    distinct: Annotated[int, typer.Option("--distinct", min=1, help="With --zipf: ids of every feature.")] = 10_000_000,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw it, as SVG.")] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Predict hit rates, SSD reads and write amplification of budgets, by the servers' own tiers over a trace of keys.

    Of a finished run its own budget stands beside what the run measured, and in the run's summary.

    [bold]Examples[/]

    [cyan]hetero tiers examples/criteo_like_dlrm.yaml --memory 64MiB --memory 256MiB --plot tiers.svg[/]

    [cyan]hetero tiers runs/criteo-like --json[/]

    [cyan]hetero tiers examples/criteo_like_dlrm.yaml --memory 8GiB --zipf 1.05 --distinct 100000000 --steps 500[/]
    """
    from pipelines.tiers import ZipfTrace, plot_study, study_tiers

    if zipf is not None and steps is None:
        raise UserError("--zipf: made ids have no end; give --steps")
    output = Output(as_json=as_json)
    with output.console.status("following the keys"):
        study = study_tiers(
            path,
            memory=[as_bytes(text, option="--memory") for text in memory or ()],
            ssd_bytes=None if ssd is None else as_bytes(ssd, option="--ssd"),
            steps=steps,
            window=window,
            sample=sample,
            zipf=None if zipf is None else ZipfTrace(exponent=zipf, distinct=distinct, steps=steps or 1),
            overrides=overrides or (),
        )
        if plot is not None:
            plot_study(study, plot)
    output.result(study.to_dict(), shown=study.shown())
