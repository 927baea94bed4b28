"""The command line: exit codes, what stands on which stream, one JSON object, and help that needs no manual."""

from __future__ import annotations

import json
import logging
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hetero.errors import CapacityError, DataError
from hetero.observe.logs import PACKAGES
from hetero.observe.summary import Scores, Summary
from pipelines.cli import main
from pipelines.job import Job

SUMMARY = Summary(
    name="movielens",
    run_folder="runs/x",
    seed=7,
    placement="in process",
    steps=10,
    samples=100,
    samples_per_s=float("nan"),
    wall_s=1.0,
    auc=0.75,
    test_samples=20,
)
JOB = """\
name: small
data: {train: train.parquet}
features: {sparse: [{name: user}]}
tables: [{name: wide, dim: 1}]
tower: logistic_regression
roles: {servers: {count: 1, threads: 2}}
"""
COMMANDS = (
    ("train",),
    ("evaluate",),
    ("doctor",),
    ("demo",),
    ("data",),
    ("data", "movielens"),
    ("data", "adult"),
    ("data", "criteo-like"),
)
Plant = Callable[..., None]


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, levels = list(root.handlers), {name: logging.getLogger(name).level for name in PACKAGES}
    yield
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
        handler.close()
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / "job.yaml").write_text(JOB)


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Put functions in the place of a module of pipelines: plant("train", fit=...)."""

    def put(module: str, **functions: object) -> None:
        stand_in = types.ModuleType(f"pipelines.{module}")
        for name, function in functions.items():
            setattr(stand_in, name, function)
        monkeypatch.setitem(sys.modules, f"pipelines.{module}", stand_in)

    return put


def test_train_hands_over_the_job_and_reports(plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    given: dict[str, Any] = {}

    def fit(job: Job, **rest: object) -> Summary:
        given.update(rest, job=job)
        return SUMMARY

    plant("train", fit=fit)
    overrides = ["--set", "train.epochs=3", "--set", "tables[0].dim=2"]
    counts = ["--servers", "3", "--readers", "2"]
    code = main(["train", "job.yaml", *overrides, "--run", "here", "--in-process", *counts])
    out, err = capsys.readouterr()
    assert code == 0, err
    job = given["job"]
    assert (job.train.epochs, job.tables[0].dim) == (3, 2)
    assert (job.roles.servers.count, job.roles.servers.threads, job.roles.readers.count) == (3, 2, 2)
    assert (given["run_folder"], given["in_process"], given["address"]) == (Path("here"), True, None)
    assert "0.7500" in out
    assert "The run lies in runs/x" in out


def test_train_defaults_to_the_jobs_folder_and_json_is_all_of_stdout(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    def fit(job: Job, **given: object) -> Summary:
        assert given["run_folder"] == Path("runs/small")
        assert given["address"] == "auto"
        logging.getLogger("hetero.loops").info("chatter")
        logging.getLogger("hetero.loops").warning("a warning")
        return SUMMARY

    plant("train", fit=fit)
    assert main(["train", "job.yaml", "--address", "auto", "--json"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    record = json.loads(out)
    assert record["auc"] == 0.75
    assert record["samples_per_s"] is None
    assert "a warning" in err
    assert "chatter" not in err


MISTAKES = {
    "no such command": (["trian"], "No such command 'trian'. Did you mean 'train'?"),
    "no such option": (["train", "job.yaml", "--nope"], "No such option: --nope"),
    "missing argument": (["train"], "Missing argument 'JOB'"),
    "count below one": (["train", "job.yaml", "--servers", "0"], "--servers"),
    "no file": (["train", "nothing.yaml"], "nothing.yaml: the job file cannot be read (No such file or directory)"),
    "bad override": (["train", "job.yaml", "--set", "train.epoch=1"], "unknown name `epoch`; did you mean `epochs`?"),
    "both placements": (["train", "job.yaml", "--in-process", "--address", "auto"], "exclude each other"),
    "too many towers": (["train", "job.yaml", "--towers", "2000"], "train.batch_size: 1024 rows"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_said_once_with_exit_code_2(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, message = MISTAKES[case]
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert "Traceback" not in err
    assert main([*arguments, "--json"]) == 2
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert message in error["message"]
    assert error["kind"] in ("JobError", "UserError")
    assert err == ""


def test_an_error_of_the_data_is_the_users(plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    def fit(job: Job, **given: object) -> Summary:
        raise DataError("column `label` is missing in train.parquet")

    plant("train", fit=fit)
    assert main(["train", "job.yaml"]) == 2
    assert capsys.readouterr().err == "error: column `label` is missing in train.parquet\n"
    assert not Path("runs").exists()


@pytest.mark.parametrize("error", [CapacityError("needs 9 GiB, 8 are there"), ZeroDivisionError("division by zero")])
def test_a_failed_run_keeps_its_traceback_in_its_folder(
    error: Exception, plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    def fit(job: Job, **given: object) -> Summary:
        Path("runs/small").mkdir(parents=True)
        Path("runs/small/events.jsonl").write_text("{}\n")
        raise error

    plant("train", fit=fit)
    assert main(["train", "job.yaml", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "error": {"kind": type(error).__name__, "message": str(error), "log": "runs/small/run.log"}
    }
    assert "Traceback" not in err
    log = Path("runs/small/run.log").read_text()
    assert log.startswith("Traceback")
    assert str(error) in log


def test_an_error_before_the_folder_leaves_others_alone(plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/small").mkdir(parents=True)
    Path("runs/small/events.jsonl").write_text("{}\n")
    os.utime("runs/small/events.jsonl", (1e9, 1e9))

    def fit(job: Job, **given: object) -> Summary:
        raise ZeroDivisionError("division by zero")

    plant("train", fit=fit)
    assert main(["train", "job.yaml"]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == "error: ZeroDivisionError: division by zero"
    log = Path(second.removeprefix("traceback in "))
    assert "ZeroDivisionError" in log.read_text()
    assert not Path("runs/small/run.log").exists()


def test_the_keyboard_stops_a_run(plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    def fit(job: Job, **given: object) -> Summary:
        raise KeyboardInterrupt

    plant("train", fit=fit)
    assert main(["train", "job.yaml"]) == 130
    assert "stopped from the keyboard" in capsys.readouterr().err


def test_evaluate(plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    calls = []

    def evaluate_run(folder: Path, **given: object) -> Scores:
        calls.append((folder, given["data"]))
        return Scores(auc=0.5, logloss=0.69, samples=7)

    plant("evaluate", evaluate_run=evaluate_run)
    assert main(["evaluate", "runs/demo"]) == 0
    assert "0.5000" in capsys.readouterr().out
    assert main(["evaluate", "runs/demo", "--data", "a", "--data", "b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 7
    assert calls == [(Path("runs/demo"), None), (Path("runs/demo"), ["a", "b"])]


def test_data_fetches_into_the_folder(plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    def fetch(folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "train.parquet").write_bytes(b"")

    plant("datasets", fetch_movielens=fetch, fetch_adult=fetch)
    assert main(["data", "movielens"]) == 0
    assert "data/ml-100k/train.parquet" in capsys.readouterr().out
    assert main(["data", "adult", "--folder", "here", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": "here", "files": ["here/train.parquet"]}


def test_doctor_fails_when_something_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pipelines import doctor

    monkeypatch.setattr(doctor, "_start_ray", lambda: "Ray answered")
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["healthy"] is True

    def broken() -> str:
        raise RuntimeError("no")

    monkeypatch.setattr(doctor, "_start_ray", broken)
    assert main(["doctor"]) == 1
    assert "What to do" in capsys.readouterr().out


def test_demo(plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    def run_demo(*, progress: object, run_folder: Path) -> Summary:
        assert run_folder == Path("runs/demo")
        return SUMMARY

    plant("demo", run_demo=run_demo)
    assert main(["demo"]) == 0
    assert "The run lies in" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_an_example(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "Example" in out
    assert f"hetero {' '.join(command)}" in out.split("Example")[1]


def test_help_of_all_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(command[0] in out for command in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "hetero 0.1.0\n"
    assert main([]) == 2
    assert "Usage: hetero" in "".join(capsys.readouterr())
