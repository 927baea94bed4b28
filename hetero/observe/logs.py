"""The one logging setup: where log lines of every process go, and how they look."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

PACKAGES = ("hetero", "actors", "pipelines")


class _StderrHandler(logging.StreamHandler):
    """Writes to whatever `sys.stderr` is at the time of the record, as `logging.lastResort` does."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> object:
        return sys.stderr


class _FileHandler(logging.FileHandler):
    """A file handler of this setup, told apart from those of others."""


def setup_logging(
    *, role: str, level: int = logging.INFO, screen_level: int | None = None, file: Path | None = None
) -> None:
    """Send log lines of this project's packages at `level` and above, and warnings of others, to stderr.

    role: stands in every line, such as `driver` or `tower/0`. screen_level: for stderr; default, what it was, at first
    `level`.
    file: also append the lines there. May be called again: the newest call holds, and handlers of anyone else
    stay as they are.
    """
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, (_StderrHandler, _FileHandler)):
            if screen_level is None and isinstance(handler, _StderrHandler):
                screen_level = handler.level
            root.removeHandler(handler)
            handler.close()
    layout = logging.Formatter(
        f"%(asctime)s %(levelname)s {role.replace('%', '%%')} %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    screen = _StderrHandler()
    screen.setLevel(level if screen_level is None else screen_level)
    handlers: list[logging.Handler] = [screen]
    if file is not None:
        handlers.append(_FileHandler(file, encoding="utf-8"))
    for handler in handlers:
        handler.setFormatter(layout)
        root.addHandler(handler)
    for package in PACKAGES:
        logging.getLogger(package).setLevel(level)
