"""The command line. What people read goes to the screen; with `--json`, stdout holds exactly one JSON object.

Exit codes: 0 done; 1 failed (the traceback is in a file that the message names); 2 the user's mistake.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hetero import __version__
from hetero.errors import HeteroError, StoppedError, UserError
from pipelines.cluster_commands import cluster_app
from pipelines.data_commands import data_app
from pipelines.deep_commands import resume_deep, sample, train_deep
from pipelines.drill_commands import drill
from pipelines.model_commands import add_model_commands
from pipelines.options import Address, AsJson, InProcess, Overrides, Readers, Servers, Towers, refuse_two_places
from pipelines.output import (
    FAILED,
    INTERRUPTED,
    USERS_MISTAKE,
    Output,
    keep_traceback,
    show_error,
    traceback_kept_in,
)
from pipelines.plan_commands import plan, probe, profile
from pipelines.report_commands import dashboard_app, report
from pipelines.tier_commands import tiers

_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="hetero",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_app, name="data")
app.add_typer(cluster_app, name="cluster")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Trains wide and deep models on Ray: sparse rows on CPU servers, dense towers where they compute best.

    A first model in three minutes: [cyan]hetero demo[/]. Something amiss: [cyan]hetero doctor[/].
    """
    if version:
        sys.stdout.write(f"hetero {__version__}\n")
        raise typer.Exit


@app.command()
def train(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="Job file (YAML), such as examples/movielens.yaml.")],
    overrides: Overrides = None,
    run: Annotated[
        Path | None, typer.Option("--run", metavar="DIR", help="Folder of the run. Default: the job's run.folder.")
    ] = None,
    address: Address = None,
    in_process: InProcess = False,
    readers: Readers = None,
    servers: Servers = None,
    towers: Towers = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="Take roles, nodes and budgets of this plan (hetero plan)."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest snapshot in the run's folder, if there is one.")
    ] = False,
    snapshot: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Deep jobs: a snapshot to go on from, of any mesh.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a job, score its test data, and write the run's folder.

    The folder holds summary.json, events.jsonl, job.resolved.yaml and the losses; an older run there is moved aside.

    [bold]Examples[/]

    [cyan]hetero train examples/movielens.yaml[/]

    [cyan]hetero train examples/movielens.yaml --set train.epochs=1 --set tables\\[1].dim=32[/]

    [cyan]hetero train examples/movielens.yaml --servers 4 --run runs/four --json[/]

    [cyan]hetero train examples/shakespeare.yaml --set mesh.tp=2 --set mesh.dp=2[/]
    """
    from pipelines.deep_schema import is_deep
    from pipelines.job import load_job, with_counts
    from pipelines.plan_file import planned_job
    from pipelines.progress import progress_for
    from pipelines.report import report as tables

    output = Output(as_json=as_json)
    refuse_two_places(in_process=in_process, address=address)
    if is_deep(job):
        if readers or servers or towers or plan:
            raise UserError(
                "--readers, --servers, --towers and --plan are of wide jobs; a deep one has --set mesh.dp=N and others"
            )
        train_deep(job, overrides or (), run, in_process, address, snapshot, output)
        return
    if snapshot is not None:
        raise UserError("--from: this job has no transformer, and only deep jobs go on from a snapshot")
    if plan is not None and (readers or servers or towers):
        raise UserError("--plan and --readers, --servers, --towers exclude each other: the plan has the counts")
    loaded = with_counts(load_job(job, overrides=overrides or ()), readers=readers, servers=servers, towers=towers)
    if plan is not None:
        loaded = planned_job(loaded, path=plan)
    folder = run or Path(loaded.run.folder)
    with traceback_kept_in(folder), progress_for(output.console, silent=as_json) as progress:
        summary = loaded.fit(
            run_folder=folder, address=address, in_process=in_process, resume=resume, progress=progress
        )
    output.result(summary.to_dict(), shown=tables(summary))


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, such as runs/demo.")],
    overrides: Overrides = None,
    address: Address = None,
    in_process: InProcess = False,
    readers: Readers = None,
    servers: Servers = None,
    towers: Towers = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was stopped or failed, from its newest whole snapshot to the end of its job.

    In mode sync with one tower the result is that of a run which was never stopped, to the bit, whatever the numbers
    of readers and servers before and after.

    [bold]Examples[/]

    [cyan]hetero resume runs/demo[/]

    [cyan]hetero resume runs/demo --servers 4 --set train.epochs=6[/]
    """
    from pipelines.deep_schema import is_deep_run
    from pipelines.progress import progress_for
    from pipelines.report import report as tables
    from pipelines.resume import resume_run

    output = Output(as_json=as_json)
    refuse_two_places(in_process=in_process, address=address)
    if is_deep_run(run):
        resume_deep(run, overrides or (), in_process, address, output)
        return
    with traceback_kept_in(run), progress_for(output.console, silent=as_json) as progress:
        summary = resume_run(
            run,
            overrides=overrides or (),
            readers=readers,
            servers=servers,
            towers=towers,
            address=address,
            in_process=in_process,
            progress=progress,
        )
    output.result(summary.to_dict(), shown=tables(summary))


@app.command()
def scale(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run that is training, such as runs/demo.")],
    servers: Annotated[int, typer.Option("--servers", min=1, metavar="N", help="Number of servers to go on with.")],
    as_json: AsJson = False,
) -> None:
    """Change the number of servers of a run that is training, which goes on meanwhile; no update is lost.

    Returns at once: the run's log and its event servers.changed say when it is done.

    [bold]Examples[/]

    [cyan]hetero scale runs/demo --servers 4[/]
    """
    from pipelines.scale import scale_run

    output = Output(as_json=as_json)
    scale_run(run, servers=servers)
    output.result({"run": str(run), "servers": servers}, shown=f"asked {run} to go on with {servers} servers")


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, such as runs/demo.")],
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="PATH", help="Data to score; may be given many times. Default: the job's test."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score data with the model of a run: AUC, log loss, calibration. The model does not change.

    [bold]Examples[/]

    [cyan]hetero evaluate runs/demo[/]

    [cyan]hetero evaluate runs/demo --data data/ml-100k/train.parquet --json[/]
    """
    from pipelines.evaluate import evaluate_run
    from pipelines.report import scores_report

    output = Output(as_json=as_json)
    with output.console.status("scoring"):
        scores = evaluate_run(run, data=data or None)
    output.result(scores.to_dict(), shown=scores_report(scores, of=", ".join(data or ["test data"])))


app.command()(plan)
app.command()(probe)
app.command()(profile)
app.command()(sample)
app.command()(drill)
add_model_commands(app)
app.command()(tiers)
app.command(name="report")(report)
app.add_typer(dashboard_app, name="dashboard")


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Look at this machine and this installation, and say what is missing and what to do about it.

    Exit code 1 when something is missing that training needs.

    [bold]Example[/]

    [cyan]hetero doctor[/]
    """
    from pipelines.doctor import diagnose, show

    output = Output(as_json=as_json)
    with output.console.status("looking at the machine and starting a tiny Ray"):
        diagnosis = diagnose()
    output.result(diagnosis.to_dict(), shown=show(diagnosis))
    if not diagnosis.healthy:
        raise typer.Exit(FAILED)


@app.command()
def demo(
    run: Annotated[Path, typer.Option("--run", metavar="DIR", help="Folder of the run.")] = Path("runs/demo"),
    as_json: AsJson = False,
) -> None:
    """Train a first model: MovieLens 100K, Wide & Deep, through Ray with 1 reader, 2 servers and 1 tower.

    [bold]Example[/]

    [cyan]hetero demo[/]
    """
    from pipelines.demo import run_demo
    from pipelines.progress import progress_for
    from pipelines.report import report as tables

    output = Output(as_json=as_json)
    with traceback_kept_in(run), progress_for(output.console, silent=as_json) as progress:
        summary = run_demo(progress=progress, run_folder=run)
    output.result(summary.to_dict(), shown=tables(summary))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. arguments: default, those of the process. Returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in words
    try:
        code = app(args=words, prog_name="hetero", standalone_mode=False)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except _USAGE_ERROR as error:
        return _usage_error(error, as_json=as_json)
    except UserError as error:
        return show_error(error, code=USERS_MISTAKE, as_json=as_json)
    except StoppedError as error:
        _end_undisturbed(ends=arguments is None)
        return show_error(error, code=error.exit_code, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        _end_undisturbed(ends=arguments is None)
        return show_error(HeteroError("stopped from the keyboard"), code=INTERRUPTED, as_json=as_json)
    except Exception as error:
        keep_traceback(error, None)
        return show_error(error, code=FAILED, as_json=as_json)


def _end_undisturbed(*, ends: bool) -> None:
    """Where the process ends now because of a Ctrl-C, another changes neither what it prints nor its exit code."""
    if ends and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _usage_error(error: Exception, *, as_json: bool) -> int:
    """An unknown option or a missing argument; a group without a command shows its help."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and not as_json:
        sys.stderr.write(str(error) + "\n")
        return USERS_MISTAKE
    command = context.command_path if context is not None else "hetero"
    words = getattr(error, "format_message", error.__str__)()
    return show_error(UserError(f"{words.rstrip('.')} (see {command} --help)"), code=USERS_MISTAKE, as_json=as_json)
