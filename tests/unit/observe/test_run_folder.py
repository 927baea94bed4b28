"""The run's folder: held while it is written, older runs moved aside, nothing of anyone else's touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hetero.errors import DataError, UserError
from hetero.observe.run_folder import RunFolder, read_json, write_json, write_whole


def finished_run(path: Path, mark: str) -> None:
    with RunFolder.create(path) as folder:
        folder.resolved_job.write_text("name: x\n")
        folder.summary.write_text(json.dumps({"mark": mark}))


def test_a_new_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "runs" / "demo") as folder:
        assert folder.path.is_dir()
        assert folder.name == "demo"
        assert folder.moved_to is None
        assert not folder.finished
        assert folder.summary.parent == folder.path


def test_older_runs_are_moved_aside_whole_and_numbered(tmp_path: Path) -> None:
    path = tmp_path / "demo"
    for mark in ("first", "second", "third"):
        finished_run(path, mark)
    assert read_json(path / "summary.json") == {"mark": "third"}
    assert read_json(tmp_path / "demo.previous-1" / "summary.json") == {"mark": "first"}
    assert read_json(tmp_path / "demo.previous-2" / "summary.json") == {"mark": "second"}
    with RunFolder.create(path) as folder:
        assert folder.moved_to == tmp_path / "demo.previous-3"


def test_a_run_that_died_is_moved_aside_too(tmp_path: Path) -> None:
    path = tmp_path / "demo"
    path.mkdir()
    (path / "events.jsonl").write_text("{}\n")
    (path / "run.lock").write_text("1\n")
    with RunFolder.create(path) as folder:
        assert folder.moved_to is not None
        assert (folder.moved_to / "events.jsonl").is_file()


def test_a_run_that_is_being_written_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "demo"
    with RunFolder.create(path) as first:
        first.events.write_text("{}\n")
        with pytest.raises(UserError, match=r"is being written by process \d+; wait for that run"):
            RunFolder.create(path)
        assert first.events.read_text() == "{}\n"
        assert [entry.name for entry in tmp_path.iterdir()] == ["demo"]
    RunFolder.create(path).close()


def test_a_run_is_gone_on_with_in_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "demo"
    with RunFolder.create(path) as first:
        first.resolved_job.write_text("name: demo\n")
        first.summary.write_text("{}\n")
        with pytest.raises(UserError, match=r"is being written by process \d+"):
            RunFolder.reopen(path)
        assert first.finished
    with RunFolder.reopen(path) as folder:
        assert folder.resolved_job.is_file()
        assert not folder.finished
        with pytest.raises(UserError, match="is being written"):
            RunFolder.create(path)
    with pytest.raises(UserError, match="no such folder"):
        RunFolder.reopen(tmp_path / "other")


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="is not empty and holds no run"):
        RunFolder.create(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    with pytest.raises(UserError, match="is a file"):
        RunFolder.create(tmp_path / "thesis.txt")
    with pytest.raises(UserError, match="cannot be made"):
        RunFolder.create(tmp_path / "thesis.txt" / "demo")


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path) as folder:
        assert folder.moved_to is None


def test_open_wants_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such folder"):
        RunFolder.open(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"job\.resolved\.yaml is missing"):
        RunFolder.open(tmp_path)
    finished_run(tmp_path / "demo", "x")
    assert RunFolder.open(tmp_path / "demo").finished


def test_files_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"loss": float("nan"), "n": 1})
    assert path.read_text() == '{\n  "loss": null,\n  "n": 1\n}\n'
    with pytest.raises(TypeError):
        write_json(path, {"n": object()})
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    assert read_json(path) == {"loss": None, "n": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


def test_reading_json_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("{")
    (tmp_path / "b").write_text("[]")
    for name in ("a", "b", "c"):
        with pytest.raises(DataError, match=f"{tmp_path / name}"):
            read_json(tmp_path / name)
