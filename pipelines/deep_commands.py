"""Commands of deep models: packing text, training, text by a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hetero.errors import UserError
from pipelines.options import AsJson
from pipelines.output import Output, traceback_kept_in


def train_deep(
    job: Path,
    overrides: Sequence[str],
    run: Path | None,
    in_process: bool,
    address: str | None,
    snapshot: Path | None,
    output: Output,
) -> None:
    """`hetero train` of a job with a transformer."""
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


def resume_deep(run: Path, overrides: Sequence[str], in_process: bool, address: str | None, output: Output) -> None:
    """`hetero resume` of a run with a transformer: the newest snapshot, on the mesh that the job now has."""
    from hetero.checkpoint.mesh_snapshot import snapshots_in
    from hetero.loops.deep import SNAPSHOTS
    from hetero.observe.run_folder import RunFolder

    folder = RunFolder.open(run)
    found = snapshots_in(folder.path / SNAPSHOTS)
    if not found:
        raise UserError(f"run folder {run}: holds no whole snapshot; train again, with train.snapshot_every set")
    train_deep(folder.resolved_job, overrides, run, in_process, address, found[-1], output)


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
