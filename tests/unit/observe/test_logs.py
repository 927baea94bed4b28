"""The logging setup: one handler each, however often it is called, and levels that hold."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from hetero.observe.logs import PACKAGES, setup_logging


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, levels = list(root.handlers), {name: logging.getLogger(name).level for name in PACKAGES}
    ours = [handler for handler in handlers if type(handler).__module__ == setup_logging.__module__]
    for handler in ours:  # a command that ran before in this process may have set the screen's level
        root.removeHandler(handler)
    yield
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
        handler.close()
    for handler in ours:
        root.addHandler(handler)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def test_lines_go_to_stderr_once_with_their_role(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(role="tower/0")
    setup_logging(role="tower/1")
    logging.getLogger("hetero.loops").info("100%% of %d", 3)
    logging.getLogger("someone.else").info("hidden")
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.rstrip().endswith("INFO tower/1 hetero.loops: 100% of 3")


def test_the_file_gets_what_the_screen_is_spared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(role="driver", screen_level=logging.WARNING)
    setup_logging(role="driver", file=tmp_path / "run.log")
    logging.getLogger("pipelines.train").info("quiet")
    logging.getLogger("pipelines.train").warning("loud")
    assert [line.split(": ")[1] for line in capsys.readouterr().err.splitlines()] == ["loud"]
    assert [line.split(": ")[1] for line in (tmp_path / "run.log").read_text().splitlines()] == ["quiet", "loud"]


def test_handlers_of_others_stay() -> None:
    other = logging.NullHandler()
    logging.getLogger().addHandler(other)
    setup_logging(role="driver")
    setup_logging(role="driver")
    assert other in logging.getLogger().handlers
