"""Commands that show what a run does and did: its page, and the dashboard of runs that are alive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hetero.errors import UserError
from pipelines.options import AsJson
from pipelines.output import Output

dashboard_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


@dashboard_app.callback()
def _dashboard() -> None:
    """Files for watching runs that are alive: see docs/dashboard.md."""


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, such as runs/demo.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="HTML file to write. Default: report.html in RUN.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the page of a run: loss, throughput, where time went, tiers, staleness, predicted beside measured.

    One HTML file with everything in it, which opens without a network. A run that is training, or failed, has one too.

    [bold]Examples[/]

    [cyan]hetero report runs/demo[/]

    [cyan]hetero report runs/demo --out demo.html --json[/]
    """
    from pipelines.run_page import write_page

    output = Output(as_json=as_json)
    with output.console.status("drawing"):
        page = write_page(run, out=out)
    left_out = f"; nothing to show of: {', '.join(page.left_out)}" if page.left_out else ""
    shown = f"{page.path}: {page.figures} plots, {page.bytes / 1000:,.0f} kB{left_out}"
    output.result(page.to_dict(), shown=shown)


@dashboard_app.command("grafana")
def dashboard_grafana(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="JSON file to write.")],
    as_json: AsJson = False,
) -> None:
    """Write the Grafana dashboard of the metrics that runs export, for Ray's Grafana or any other.

    [bold]Example[/]

    [cyan]hetero dashboard grafana --out hetero_grafana_dashboard.json[/]
    """
    from pipelines.grafana import dashboard, write_dashboard

    output = Output(as_json=as_json)
    if out.is_dir():
        raise UserError(f"--out {out}: is a folder; give a file in it, such as {out / 'hetero_grafana_dashboard.json'}")
    record = dashboard()
    write_dashboard(record, out)
    told = {"path": str(out), "uid": record["uid"], "panels": len(record["panels"])}
    output.result(told, shown=f"{out}: dashboard {told['uid']}, {told['panels']} panels")
