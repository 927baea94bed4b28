"""What a run heeds when `ray job submit` started it: where it may lie, and how long a stop may take."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from hetero.errors import UserError

_LOG = logging.getLogger(__name__)
_COPIES = "working_dir_files"
"""The folder on each node into which Ray unpacks the working directories of jobs."""
_IN_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Ray sets it for the driver of a job that was submitted."""
RAY_ADDRESS = "RAY_ADDRESS"
"""The cluster, as Ray tells it the driver of such a job, and as people may set it."""
STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
_STOP_WAIT_S = 3.0
"""Ray's default for STOP_WAIT: seconds from SIGTERM to SIGKILL."""


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


def tell_of_short_stops(stop_deadline_s: float, *, environment: Mapping[str, str] = os.environ) -> None:
    """Warn when `ray job stop` would kill this run before its last snapshot may be whole."""
    told = environment.get(STOP_WAIT, "")
    waits_s = float(told) if told.replace(".", "", 1).isdigit() else _STOP_WAIT_S
    if _IN_JOB in environment and waits_s < stop_deadline_s:
        _LOG.warning(
            "`ray job stop` kills this run after %g s, and its snapshot may take %g s (run.stop_deadline_s): submit it "
            'with --runtime-env-json \'{"env_vars": {"%s": "%g"}}\', or start the cluster with that variable',
            waits_s,
            stop_deadline_s,
            STOP_WAIT,
            stop_deadline_s + 30,
        )
