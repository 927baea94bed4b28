"""Options that several commands have."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from hetero.errors import UserError
from pipelines.submitted import RAY_ADDRESS

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, all else on stderr.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Change a value of the job; may be given many times."),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="ADDRESS",
        envvar=RAY_ADDRESS,
        help="A running Ray cluster; jobs of `ray job submit` are given theirs. Default: Ray in this process.",
    ),
]
InProcess = Annotated[
    bool, typer.Option("--in-process", help="All roles in this process, without Ray; for small data and debugging.")
]
Readers = Annotated[int | None, typer.Option("--readers", min=1, metavar="N", help="Number of readers.")]
Servers = Annotated[int | None, typer.Option("--servers", min=1, metavar="N", help="Number of servers.")]
Towers = Annotated[int | None, typer.Option("--towers", min=1, metavar="N", help="Number of towers.")]


def refuse_two_places(*, in_process: bool, address: str | None) -> None:
    """Raises UserError when a run is to be both in this process and on a cluster. A cluster that the environment names
    holds only where nothing else is said."""
    if in_process and address is not None and address != os.environ.get(RAY_ADDRESS):
        raise UserError("--in-process and --address exclude each other: one runs without Ray, the other on a cluster")
