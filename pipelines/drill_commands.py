"""The command `drill`: what a run survives."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.errors import UserError
from pipelines.options import AsJson, Overrides
from pipelines.output import FAILED, Output, traceback_kept_in

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pipelines.drill import Drilled


class HitRole(StrEnum):
    """Whom to hit."""

    READER = "reader"
    SEQUENCER = "sequencer"
    SERVER = "server"
    TOWER = "tower"
    ANY = "any"


class HitWith(StrEnum):
    """How to hit."""

    KILL = "kill"
    STOP = "stop"
    RAYLET = "raylet"


def drill(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="Job file (YAML) of a wide job.")],
    role: Annotated[HitRole, typer.Option("--role", help="Whom to hit.")] = HitRole.ANY,
    fault: Annotated[
        HitWith,
        typer.Option("--fault", help="kill: SIGKILL. stop: SIGSTOP, it falls silent. raylet: its whole node is lost."),
    ] = HitWith.KILL,
    step: Annotated[
        int | None, typer.Option("--step", min=1, metavar="N", help="When. Default: a random step.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Same seed, same choice of role and step.")] = 1,
    run: Annotated[Path, typer.Option("--run", metavar="DIR", help="Folder of both runs and of drill.json.")] = Path(
        "runs/drill"
    ),
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Train a job twice on this machine, undisturbed and with one role killed or stopped, and account for it.

    Says what the run did about it, how long that took, which rows were lost or trained twice (none may be), and the
    loss beside the undisturbed run's. Exit code 1 when it did not come to its end, or rows were lost or trained twice.

    [bold]Examples[/]

    [cyan]hetero drill examples/movielens.yaml --role server[/]

    [cyan]hetero drill examples/movielens.yaml --fault stop --step 100 --set train.epochs=1 --json[/]
    """
    from actors.faults import Fault
    from actors.naming import Role
    from pipelines.deep_schema import is_deep
    from pipelines.drill import drill as drill_job
    from pipelines.job import load_job
    from pipelines.progress import progress_for

    output = Output(as_json=as_json)
    if is_deep(job):
        raise UserError(f"{job}: is a deep job; only wide jobs are drilled so far")
    loaded = load_job(job, overrides=overrides or ())
    with traceback_kept_in(run), progress_for(output.console, silent=as_json) as progress:
        drilled = drill_job(
            loaded,
            folder=run,
            progress=progress,
            role=None if role is HitRole.ANY else Role(role.value),
            fault=Fault(fault.value),
            step=step,
            seed=seed,
        )
    output.result(drilled.to_dict(), shown=drill_report(drilled, folder=run))
    if not drilled.passed:
        raise typer.Exit(FAILED)


def drill_report(drilled: Drilled, *, folder: Path) -> RenderableType:
    """The table that ends a drill."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from pipelines.report import recovered

    table = Table.grid(padding=(0, 2))
    table.add_row("fault", "; ".join(str(hit) for hit in drilled.hits))
    for hit in drilled.missed:
        table.add_row("missed", f"{hit}: the run was over, or the role was not there")
    for recovery in drilled.recoveries:
        table.add_row("recovered", f"{recovered(recovery)}: {recovery['reason']}")
    if drilled.error is not None:
        table.add_row("FAILED", drilled.error)
    else:
        table.add_row("time to recover", f"{drilled.time_lost_s:.1f} s")
        table.add_row("steps repeated", f"{drilled.steps_repeated:,} of {drilled.steps:,}")
        table.add_row("rows lost", f"{drilled.rows_lost:,} (by the {drilled.counted_by})")
        table.add_row("rows trained twice", f"{drilled.rows_trained_twice:,}")
        table.add_row("rows read again", f"{drilled.rows_read_again:,} at most")
        table.add_row("final loss", f"{drilled.final_loss:.6f}, undisturbed {drilled.undisturbed_loss:.6f}")
        same = "to the bit" if drilled.same_bits else f"no; final losses differ by {drilled.loss_difference:.1e}"
        table.add_row("as the undisturbed run", same)
    for process in drilled.left_behind:
        table.add_row("left behind", process)
    return Group(Text(""), table, Text(""), Text(f"Both runs and drill.json lie in {folder}", style="bold"))
