"""Commands about cluster files: `hetero cluster ...`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.options import AsJson
from pipelines.output import FAILED, Output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pipelines.cluster_check import Checked

cluster_app = typer.Typer(
    no_args_is_help=True, help="The file that `ray up` reads: check it, and start a machine by it."
)

ClusterFile = Annotated[Path, typer.Argument(metavar="FILE", help="Cluster file (YAML), such as cluster.yaml.")]


@cluster_app.command("check")
def check(
    file: ClusterFile,
    jobs: Annotated[
        list[Path] | None,
        typer.Option("--job", metavar="JOB", help="Job file: could it run there? May be given many times."),
    ] = None,
    rows: Annotated[
        int, typer.Option("--rows", metavar="N", min=0, help="Rows expected in all tables of a job, for their memory.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Validate a cluster file with Ray's own validator, and say which jobs could run on its nodes. Starts nothing.

    Exit code 2 when the file is not valid, 1 when a job could not run there.

    [bold]Examples[/]

    [cyan]hetero cluster check cluster.yaml[/]

    [cyan]hetero cluster check cluster.yaml --job examples/criteo_like_dlrm.yaml --rows 500000000[/]
    """
    from pipelines.cluster_check import checked

    output = Output(as_json=as_json)
    result = checked(file, jobs=jobs or (), rows=rows)
    output.result(result.to_dict(), shown=check_report(result))
    if not all(job.runs for job in result.jobs):
        raise typer.Exit(FAILED)


@cluster_app.command("flags")
def flags(file: ClusterFile) -> None:
    """Flags of `ray start` for this machine, one of an on-premise cluster file: its resources and labels.

    [bold]Example[/]

    [cyan]ray start --address=$RAY_HEAD_IP:6379 $(hetero cluster flags ~/cluster.yaml)[/]
    """
    from pipelines.cluster_flags import node_flags, own_addresses

    sys.stdout.write(node_flags(file, addresses=own_addresses()) + "\n")


def check_report(result: Checked) -> RenderableType:
    """What a checked file comes to, as people read it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    kinds = Table(title="kinds of node", title_justify="left", box=None)
    for name in ("name", "most", "cores", "memory", "SSD", "accelerators", "an hour", "labels"):
        kinds.add_column(name, justify="right" if name in ("most", "cores", "memory", "SSD", "an hour") else "left")
    for kind in result.cluster.kinds:
        kinds.add_row(
            kind.name,
            f"{kind.count}",
            f"{kind.cores:g}",
            f"{kind.memory_bytes / 2**30:,.0f} GiB",
            f"{kind.ssd_bytes / 2**30:,.0f} GiB" if kind.ssd_bytes else "",
            f"{kind.accelerators} x {kind.accelerator}" if kind.accelerators else "",
            f"{kind.price:,.2f}",
            ", ".join(f"{name}={value}" for name, value in kind.labels.items()),
        )
    parts: list[RenderableType] = [
        Text(f"{result.file}: valid for Ray {result.ray}, provider {result.provider}", style="bold"),
        kinds,
    ]
    if result.jobs:
        jobs = Table(title="jobs", title_justify="left", box=None)
        for name in ("job", "runs", "how, or why not"):
            jobs.add_column(name, overflow="fold")
        for job in result.jobs:
            jobs.add_row(job.job, "yes" if job.runs else "NO", job.how)
        parts.append(jobs)
    parts += [Text(f"note: {note}", style="yellow") for note in result.notes]
    return Group(*parts)
