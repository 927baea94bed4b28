"""The folder of one run: what lies in it, who may write to it, and what becomes of an older run there."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

from hetero.errors import DataError, UserError
from hetero.observe.events import plain

SUMMARY = "summary.json"
EVENTS = "events.jsonl"
RESOLVED_JOB = "job.resolved.yaml"
LOSSES = "losses.npy"
STEP_ENDS = "step_ends.npy"
MALFORMED = "malformed.jsonl"
LOG = "run.log"
LOCK = "run.lock"
SNAPSHOTS = "snapshots"
SNAPSHOTS_ELSEWHERE = "snapshots.path"
SHARES = "shares.jsonl"
SERVERS_ASKED = "servers.asked"
MARKS = (SUMMARY, EVENTS, RESOLVED_JOB, LOCK)


class RunFolder:
    """A run's folder. `create` makes it for writing and holds it until `close`; `open` reads an existing run.

    summary: `summary.json`, written last, so that it is there only when the run finished.
    events: the event log. resolved_job: the job with every default written out. losses: float64 [steps], the mean
    loss of each step. step_ends: float64 [steps], unix seconds when each ended. malformed: one line of JSON a row left
    out. snapshots: folder of snapshots. log: log lines, and the traceback of a failed run.
    """

    def __init__(self, path: Path, *, lock: int | None = None, moved_to: Path | None = None) -> None:
        self.path = path
        self.moved_to = moved_to
        self._lock = lock

    @staticmethod
    def create(path: Path) -> RunFolder:
        """Make the folder of a new run and hold it, so that no second run writes into it.

        An older run there is moved aside, whole, to `<name>.previous-<n>` with the next free n (`moved_to`).
        Raises UserError when a run is writing into it now, and when it holds something that is not a run.
        """
        path = Path(path) if Path(path).name else Path(path).resolve()
        moved_to = None
        try:
            if path.exists() and not path.is_dir():
                raise UserError(f"run folder {path}: is a file; give another folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            with _one_at_a_time(path.parent):
                if path.is_dir() and any(path.iterdir()):
                    _refuse_unless_idle_run(path)
                    moved_to = _next_free(path)
                    path.rename(moved_to)
                path.mkdir(exist_ok=True)
                lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(f"run folder {path}: cannot be made ({error.strerror}); give another folder") from error
        os.write(lock, f"{os.getpid()}\n".encode())
        return RunFolder(path, lock=lock, moved_to=moved_to)

    @staticmethod
    def reopen(path: Path) -> RunFolder:
        """Hold the folder of an earlier run, to go on with it; its summary, if it finished, is removed.

        Raises UserError when there is no run in it, or one is writing into it now.
        """
        folder = RunFolder.open(path)
        try:
            with _one_at_a_time(folder.path.resolve().parent):
                _refuse_unless_idle_run(folder.path)
                lock = os.open(folder.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            folder.summary.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"run folder {path}: cannot be written ({error.strerror}); make it writable") from error
        os.write(lock, f"{os.getpid()}\n".encode())
        return RunFolder(folder.path, lock=lock)

    @staticmethod
    def is_run(path: Path) -> bool:
        """Whether a run lies in the folder."""
        return (Path(path) / RESOLVED_JOB).is_file()

    @staticmethod
    def open(path: Path) -> RunFolder:
        """A run's folder for reading. Raises UserError when there is no run in it."""
        path = Path(path)
        if not path.is_dir():
            raise UserError(f"run folder {path}: there is no such folder; give the folder of a run, such as runs/demo")
        if not RunFolder.is_run(path):
            raise UserError(f"run folder {path}: holds no run ({RESOLVED_JOB} is missing); give one that training made")
        return RunFolder(path)

    @property
    def name(self) -> str:
        """The run's name: that of its folder."""
        return self.path.resolve().name

    @property
    def summary(self) -> Path:
        return self.path / SUMMARY

    @property
    def events(self) -> Path:
        return self.path / EVENTS

    @property
    def resolved_job(self) -> Path:
        return self.path / RESOLVED_JOB

    @property
    def losses(self) -> Path:
        return self.path / LOSSES

    @property
    def step_ends(self) -> Path:
        return self.path / STEP_ENDS

    @property
    def malformed(self) -> Path:
        return self.path / MALFORMED

    @property
    def shares(self) -> Path:
        """Changes of how batches are divided among towers, one line of JSON each."""
        return self.path / SHARES

    @property
    def snapshots(self) -> str:
        """Path or URI of the folder of the run's snapshots."""
        elsewhere = self.path / SNAPSHOTS_ELSEWHERE
        return elsewhere.read_text(encoding="utf-8").strip() if elsewhere.is_file() else str(self.path / SNAPSHOTS)

    def keep_snapshots_in(self, folder: str) -> None:
        """Keep the snapshots of a new run in a folder of its own inside `folder`, a path or URI, and note where."""
        own = f"{folder.rstrip('/')}/{self.name}.{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.{secrets.token_hex(4)}"
        write_whole(self.path / SNAPSHOTS_ELSEWHERE, own + "\n")

    def ask_servers(self, count: int) -> None:
        """Ask the run that is alive in this folder to go on with another number of servers; the latest wish counts.

        Raises UserError when none is.
        """
        if not _is_held(self.path):
            raise UserError(f"run folder {self.path}: no run is alive in it; `hetero resume` takes --servers")
        write_whole(self.path / SERVERS_ASKED, f"{count}\n")

    def take_asked_servers(self) -> int | None:
        """The number of servers that was asked for since the last call, if any."""
        try:
            asked = (self.path / SERVERS_ASKED).read_text(encoding="ascii")
            (self.path / SERVERS_ASKED).unlink()
        except FileNotFoundError:
            return None
        return int(asked)

    @property
    def log(self) -> Path:
        return self.path / LOG

    @property
    def finished(self) -> bool:
        """Whether the run came to its end: its summary is there."""
        return self.summary.is_file()

    def close(self) -> None:
        """Let go of the folder; closing twice does nothing."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                (self.path / LOCK).unlink()
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader finds the old or the new text, never a part: beside it, then renamed."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def write_json(path: Path, record: Mapping[str, object]) -> None:
    """Write a mapping as JSON, whole; numbers that are not finite stand as null."""
    write_whole(path, json.dumps(plain(record), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, object]:
    """The mapping in a JSON file. Raises DataError when it cannot be read or holds something else."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(record, dict):
        raise DataError(f"{path}: holds {type(record).__name__}, a JSON object was expected")
    return record


def _refuse_unless_idle_run(path: Path) -> None:
    if not any((path / mark).exists() for mark in MARKS):
        raise UserError(f"run folder {path}: is not empty and holds no run, so nothing there was touched; give another")
    if _is_held(path):
        raise UserError(_busy_message(path))


def _is_held(path: Path) -> bool:
    """Whether a run is writing into the folder now."""
    if not (path / LOCK).exists():
        return False
    descriptor = os.open(path / LOCK, os.O_RDWR)
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _one_at_a_time(parent: Path) -> Iterator[None]:
    descriptor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def _busy_message(path: Path) -> str:
    holder = ""
    with contextlib.suppress(OSError):
        holder = (path / LOCK).read_text(encoding="ascii", errors="replace").strip()
    by = f" by process {holder}" if holder else ""
    return f"run folder {path}: is being written{by}; wait for that run, stop it, or give another folder"


def _next_free(path: Path) -> Path:
    number = 1
    while (candidate := path.with_name(f"{path.name}.previous-{number}")).exists():
        number += 1
    return candidate
