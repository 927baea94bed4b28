"""Asks a run that is training to go on with another number of servers."""

from __future__ import annotations

from pathlib import Path

from hetero.errors import UserError
from hetero.loops.moves import check_number
from hetero.observe.run_folder import RunFolder
from pipelines.deep_schema import is_deep_run
from pipelines.job import load_job, resolve


def scale_run(run: Path, *, servers: int) -> None:
    """Leave the wish in the run's folder, where its driver looks at it several times a second.

    Raises UserError when no run is alive there, or its servers cannot change while it trains.
    """
    if is_deep_run(run):
        raise UserError(f"run folder {run}: is of a deep job, which has no servers")
    folder = RunFolder.open(run)
    check_number(resolve(load_job(folder.resolved_job)), servers)
    folder.ask_servers(servers)
