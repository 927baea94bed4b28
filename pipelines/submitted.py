"""What a run heeds when `ray job submit` started it: its current directory is a copy that goes with the cluster."""

from __future__ import annotations

from pathlib import Path

from hetero.errors import UserError

_COPIES = "working_dir_files"
"""The folder on each node into which Ray unpacks the working directories of jobs."""


def check_lasting(folder: Path, *, here: Path | None = None) -> None:
    """Raises UserError when a run's folder would lie in the copy of a job's working directory, and be lost with it.

    here: the current directory, where it is another.
    """
    absolute = folder if folder.is_absolute() else (here or Path.cwd()) / folder
    if _COPIES in absolute.parts:
        raise UserError(
            f"run folder {folder}: lies in the copy of the job's working directory, {here or Path.cwd()}, which goes "
            "with the cluster; give a folder that stays, such as --run /shared/runs/NAME, or run.folder in the job"
        )
