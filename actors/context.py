"""What every actor is constructed from, and how a driver reaches Ray."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import ray

from actors.bundles import cpus_needed
from actors.naming import NAMESPACE
from hetero.errors import HeteroError, UserError
from hetero.hardware.probe import usable_cores
from hetero.records import JobSpec

if TYPE_CHECKING:  # torch is loaded by towers alone
    from torch import nn

_LOG = logging.getLogger(__name__)
_LOCAL_STORE_BYTES = 512 << 20
_MIN_STORE_BYTES = 80 << 20
_ANSWER_S = 5.0

THREADS_WAIT = "OMP_WAIT_POLICY"
"""How torch's threads wait for each other. By default they spin, which halved the speed of a tower that shares its
cores with other roles (9,100 rows/s against 18,600 on two cores). OpenMP reads this when a process starts."""

FETCH_WAITS = "RAY_get_check_signal_interval_milliseconds"
"""How long a thread that waits for an object of another node holds the lock of its process's object store, at most. The
thread that answers where this process's own objects are may need the lock as well, and the object then comes only when
the time is over: by Ray's default, a second later (two towers reached half their speed). A thread that waits wakes as
often, though: three of them take 5.5% of a core at 1 ms, 1.4% at 10 (0.8% at 100). Ray reads it at the start."""

WORKER_VARIABLES: Mapping[str, str] = {THREADS_WAIT: "PASSIVE", FETCH_WAITS: "10"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The frozen facts of a run. tower_class: a class given in Python; None when the job names it.

    import_paths: folders the driver imports from, so that a user's tower is found in every actor.
    reader_patience_s: how long a role that lost a reader waits for another in its place; 0 where none comes.
    """

    run: str
    job: JobSpec
    tower_class: type[nn.Module] | None = None
    import_paths: tuple[str, ...] = ()
    reader_patience_s: float = 0.0

    def enter(self) -> None:
        """Make this process ready to act for the run: the driver's import paths."""
        for path in reversed(self.import_paths):
            if path not in sys.path:
                sys.path.insert(0, path)


def set_worker_variables() -> None:
    """Let the processes of a cluster that this process is about to start have them."""
    for name, value in WORKER_VARIABLES.items():
        os.environ.setdefault(name, value)


def missing_variables() -> dict[str, str]:
    """What an actor's runtime environment has to set: all of them where others started the cluster."""
    return {} if WORKER_VARIABLES.keys() <= os.environ.keys() else dict(WORKER_VARIABLES)


@contextmanager
def connected(job: JobSpec, *, address: str | None) -> Iterator[None]:
    """Ray for the duration of a run: the cluster at `address`, one already joined in this process, or a local one.

    A local one is started with as many CPUs as the run asks for and stopped at the end.
    Raises UserError when no cluster answers at `address`.
    """
    with connected_with(cpus_needed(job), address=address):
        yield


@contextmanager
def connected_with(cpus: float, *, address: str | None) -> Iterator[None]:
    """As `connected`, for actors that ask for so many CPUs."""
    if ray.is_initialized():
        yield
        return
    try:
        if address is None:
            _start_local(cpus)
        else:
            _check_answers(address)
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
    except OSError as error:
        raise UserError(f"--address {address}: no Ray cluster answers there ({error})") from error
    try:
        yield
    finally:
        ray.shutdown()


def check_ray() -> str:
    """Start a tiny local Ray, run one task, stop it; what answered. Raises HeteroError when that does not work."""
    if ray.is_initialized():
        return f"Ray {ray.__version__}, connected"
    try:
        _init_local(num_cpus=1, store_bytes=_MIN_STORE_BYTES)
        pid = ray.get(_own_pid.remote(), timeout=60)
    except Exception as error:
        raise HeteroError(f"Ray {ray.__version__} does not start here: {error}") from error
    finally:
        ray.shutdown()
    return f"Ray {ray.__version__}, a local task ran in process {pid}"


@ray.remote
def _own_pid() -> int:
    return os.getpid()


def _check_answers(address: str) -> None:
    """Raises OSError when nothing answers at HOST:PORT; Ray itself would try for minutes. Other forms pass.

    Raises UserError for the address of a dashboard, which `ray job submit` takes too.
    """
    if address.startswith(("http://", "https://")):
        raise UserError(
            f"--address {address}: is that of the dashboard, to which jobs are submitted; give HOST:PORT of the "
            "cluster itself (port 6379, unless it was started with another), or use `ray job submit`"
        )
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if separator and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()


def _start_local(needed: float) -> None:
    cores = usable_cores()
    if needed > cores:
        _LOG.info("local Ray: the roles ask for %.1f CPUs and %.1f are here; they share them", needed, cores)
    shared = Path("/dev/shm")
    free = shutil.disk_usage(shared).free if shared.is_dir() else 2 * _LOCAL_STORE_BYTES
    _init_local(num_cpus=max(1, int(-(-max(needed, cores) // 1))), store_bytes=min(_LOCAL_STORE_BYTES, free // 2))


def _init_local(*, num_cpus: int, store_bytes: int) -> None:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    set_worker_variables()
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)  # tells of a default that suits us
    ray.init(
        address="local",
        num_cpus=num_cpus,
        object_store_memory=max(store_bytes, _MIN_STORE_BYTES),
        namespace=NAMESPACE,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.WARNING,
    )
