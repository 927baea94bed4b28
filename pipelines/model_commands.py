"""Commands over trained models: predict, export, inspect, shrink. `pipelines.cli` adds them to the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.options import Address, AsJson, InProcess, refuse_two_places
from pipelines.output import Output

ModelPath = Annotated[
    Path,
    typer.Argument(metavar="MODEL", help="A run's folder such as runs/demo, or a model or snapshot inside one."),
]


def add_model_commands(app: typer.Typer) -> None:
    """Add predict, export, inspect and shrink to the command line."""
    for command in (predict, export, inspect, shrink):
        app.command()(command)


def predict(
    model: ModelPath,
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="Parquet file to write; a path or URI.")],
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="PATH", help="Data to score; may be given many times. Default: the job's test."),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--columns", metavar="NAMES", help="Columns of the data to put beside the predictions: user,item"),
    ] = None,
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="A column TEXT_embedding too: what the text half makes of each text.")
    ] = False,
    address: Address = None,
    in_process: InProcess = False,
    as_json: AsJson = False,
) -> None:
    """Score data row by row, to Parquet: chosen columns, the label if there is one, the prediction.

    Rows come in the input's order whatever the number of readers and towers. Ids never seen score as zeros.

    [bold]Examples[/]

    [cyan]hetero predict runs/demo --out scores.parquet[/]

    [cyan]hetero predict runs/demo --data data/ml-100k/train.parquet --columns user,item --out scores.parquet --json[/]
    """
    from pipelines.model_report import predicted_report
    from pipelines.predict import predict_run

    refuse_two_places(in_process=in_process, address=address)
    output = Output(as_json=as_json)
    names = [name.strip() for names in columns or () for name in names.split(",") if name.strip()]
    with output.console.status("scoring") as status:
        predicted = predict_run(
            model,
            output=out,
            data=data or None,
            columns=names,
            address=address,
            in_process=in_process,
            embeddings=embeddings,
            told=lambda rows: status.update(f"scored {rows:,} rows"),
        )
    output.result(predicted.to_dict(), shown=predicted_report(predicted))


def export(
    model: ModelPath,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to make; it must not exist yet.")],
    as_json: AsJson = False,
) -> None:
    """Write a model that scores without Ray and without the training code: see docs/predict.md.

    The tower is a torch.export graph; tables are Parquet, and arrays that the loader maps into memory.

    [bold]Examples[/]

    [cyan]hetero export runs/demo --out exports/demo[/]

    [cyan]hetero export runs/demo/snapshots/step-0000000100 --out exports/step-100 --json[/]
    """
    from pipelines.export import export_run
    from pipelines.model_report import exported_report

    output = Output(as_json=as_json)
    with output.console.status("exporting"):
        exported = export_run(model, output=out)
    output.result(exported.to_dict(), shown=exported_report(exported))


def inspect(
    model: ModelPath,
    table: Annotated[str | None, typer.Option("--table", metavar="NAME", help="A table, such as deep/item.")] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="A key (a number), or a value: item=17, hashed as the job does it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look into a model or snapshot: its tables, one table, or one key's row, place and history.

    [bold]Examples[/]

    [cyan]hetero inspect runs/demo[/]

    [cyan]hetero inspect runs/demo --table deep/item[/]

    [cyan]hetero inspect runs/demo --key item=242 --json[/]
    """
    from pipelines.inspection import inspect_model, to_dict
    from pipelines.model_report import view_report

    output = Output(as_json=as_json)
    with output.console.status("reading"):
        view = inspect_model(model, table=table, key=key)
    output.result(to_dict(view), shown=view_report(view))


def shrink(
    model: ModelPath,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder to make, inside the run. Without it, rows are only counted."),
    ] = None,
    day: Annotated[
        int | None, typer.Option("--day", metavar="N", help="The day that begins. Default: the one after the model's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Drop rows that the tables' policies (tables[*].eviction) let go when a day begins, without training.

    [bold]Examples[/]

    [cyan]hetero shrink runs/demo[/]

    [cyan]hetero shrink runs/demo --day 40 --out runs/demo/shrunk[/]
    """
    from pipelines.model_report import shrunk_report
    from pipelines.shrink import shrink_model

    output = Output(as_json=as_json)
    with output.console.status("reading"):
        report = shrink_model(model, output=out, day=day)
    output.result(report.to_dict(), shown=shrunk_report(report))
