"""What a command says and where: results and errors as people read them, or as one JSON object."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from hetero import errors
from hetero.errors import HeteroError, UserError
from hetero.observe.events import plain
from hetero.observe.logs import setup_logging
from hetero.observe.run_folder import EVENTS, LOG

FAILED = 1
USERS_MISTAKE = 2
INTERRUPTED = 130
_KEPT_IN = "traceback in "


class Output:
    """A command's output: tables and progress go to `console`, a JSON result alone to stdout.

    Off a terminal log lines stand in for the live progress; with JSON, only warnings are shown, on stderr.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.console = Console(stderr=as_json, highlight=False)
        lines = not as_json and not self.console.is_terminal
        setup_logging(role="driver", screen_level=logging.INFO if lines else logging.WARNING)

    def result(self, record: Mapping[str, object], *, shown: RenderableType) -> None:
        """End a command with its result, as JSON or as people read it."""
        if self.as_json:
            print_json(record)
        else:
            self.console.print(shown)


def print_json(record: Mapping[str, object]) -> None:
    """Write the command's one JSON object to stdout."""
    sys.stdout.write(json.dumps(plain(record), allow_nan=False) + "\n")
    sys.stdout.flush()


def show_error(error: Exception, *, code: int, as_json: bool) -> int:
    """Say what went wrong, once, and return the exit code. What the user can mend or a role reported has a message
    of its own; anything else also gets the name of its exception."""
    kept = next((note for note in getattr(error, "__notes__", ()) if note.startswith(_KEPT_IN)), None)
    ours = [cls.__name__ for cls in type(error).__mro__ if cls.__module__ == errors.__name__]
    kind = ours[0] if ours else type(error).__name__
    if as_json:
        log = {} if kept is None else {"log": kept.removeprefix(_KEPT_IN)}
        print_json({"error": {"kind": kind, "message": str(error), **log}})
        return code
    message = str(error) if isinstance(error, HeteroError) else f"{kind}: {error}"
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text("error: ", style="bold red").append(message, style="not bold default"))
    if kept is not None:
        console.print(Text(kept, style="dim"))
    return code


@contextmanager
def traceback_kept_in(folder: Path) -> Iterator[None]:
    """Keep the traceback of a failure in the run's folder, when the run got so far as to write there."""
    started = time.time()
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        events = folder / EVENTS
        if events.is_file() and events.stat().st_mtime >= started - 1.0:
            keep_traceback(error, folder / LOG)
        raise


def keep_traceback(error: Exception, file: Path | None) -> None:
    """Append the traceback to a file, a new temporary one for None, and note on the error where. Done once."""
    if any(note.startswith(_KEPT_IN) for note in getattr(error, "__notes__", ())):
        return
    file = file or Path(tempfile.mkdtemp(prefix="hetero-")) / "error.log"
    with file.open("a", encoding="utf-8") as log:
        log.writelines(traceback.format_exception(error))
    error.add_note(f"{_KEPT_IN}{file}")
