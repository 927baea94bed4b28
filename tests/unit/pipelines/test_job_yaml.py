"""YAML: 1.2's scalars, lines and columns of errors, nothing named twice; and loading whole job files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import JobError
from pipelines.job import load_job
from pipelines.job_yaml import dump_yaml, parse_value, read_yaml

JOB = """\
name: small
data:
  train: train.parquet
features:
  sparse:
    - {name: user}
tables:
  - name: wide
    dim: 1
tower: fm
"""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.5", 1.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("-2E+4", -20000.0),
        ("012", 12),
        ("1_000_000", 1_000_000),
        ("0x1F", 31),
        ("0o17", 15),
        ("true", True),
        ("False", False),
        ("no", "no"),
        ("on", "on"),
        ("~", None),
        ("null", None),
        ("", None),
        ("2026-01-01", "2026-01-01"),
        ("12:30:00", "12:30:00"),
        ("1.2.3", "1.2.3"),
        ("[64, 32]", [64, 32]),
        ("{name: adam, lr: .1}", {"name": "adam", "lr": 0.1}),
    ],
)
def test_plain_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    parsed = parse_value(text, source="here")
    assert parsed == value
    assert type(parsed) is type(value)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(PLAIN)
def test_what_is_dumped_is_read_back(value: Any) -> None:
    assert parse_value(dump_yaml(value), source="dump") == value


@pytest.mark.parametrize(
    "text", ["no", "1e5", "012", "~", "", "2026-01-01", "true", "0o7", "1_0", "<<", " x", "a: b", "\x85"]
)
def test_text_that_looks_like_something_else_stays_text(text: str) -> None:
    assert parse_value(dump_yaml([text]), source="dump") == [text]


def test_infinity_is_a_number() -> None:
    assert parse_value("-.inf", source="x") == -math.inf


def job_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return path


def error_of(tmp_path: Path, text: str, overrides: tuple[str, ...] = ()) -> str:
    with pytest.raises(JobError) as caught:
        load_job(job_file(tmp_path, text), overrides=overrides)
    return str(caught.value)


def test_a_whole_file_loads(tmp_path: Path) -> None:
    assert load_job(job_file(tmp_path, JOB)).tables[0].dim == 1


def test_syntax_errors_have_line_and_column(tmp_path: Path) -> None:
    text = error_of(tmp_path, "name: x\ndata: {train: [a, b}\n")
    assert text.startswith(f"{tmp_path / 'job.yaml'}, line 2, column 20: no valid YAML: ")
    assert "line 2, column 1: no valid YAML: " in error_of(tmp_path, "name: x\n\tdata: 1\n")


def test_a_name_given_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    text = error_of(tmp_path, JOB.replace("    dim: 1", "    dim: 1\n    dim: 2"))
    assert "line 10, column 5: `tables[0].dim` is given twice, first in line 9" in text


def test_errors_carry_the_line_they_come_from(tmp_path: Path) -> None:
    text = error_of(tmp_path, JOB.replace("dim: 1", "dimm: 1") + "extra: 1\n")
    lines = text.splitlines()
    assert lines[0] == "tables[0].dim: is required (line 8)"
    assert lines[1].startswith("tables[0].dimm: unknown name `dimm`; did you mean `dim`?")
    assert lines[1].endswith("(line 9)")
    assert lines[2].endswith("(line 11)")
    assert lines[3] == f"3 errors in {tmp_path / 'job.yaml'}"


def test_errors_carry_the_override_they_come_from(tmp_path: Path) -> None:
    text = error_of(tmp_path, JOB, ("tables[0].dim=0", "trian.epochs=1"))
    lines = text.splitlines()
    assert lines[0] == "tables[0].dim: must be at least 1, got 0 (from --set tables[0].dim=0)"
    assert lines[1].startswith("trian: unknown name `trian`; did you mean `train`?")
    assert lines[1].endswith("(from --set trian.epochs=1)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; a job file is a mapping"),
        ("- a\n", "holds a list; a job file is a mapping"),
        ("1: x\n", "the name `1` is no text"),
        ("a: &x [*x]\n", "contains itself"),
        ("a: !!python/object:os.system {}\n", "no valid YAML"),
    ],
)
def test_files_that_are_no_job(tmp_path: Path, text: str, message: str) -> None:
    assert message in error_of(tmp_path, text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"nothing\.yaml: the job file cannot be read \(No such file"):
        load_job(tmp_path / "nothing.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9\n")
    with pytest.raises(JobError, match="it is not UTF-8 text"):
        load_job(tmp_path / "latin.yaml")


def test_anchors_and_merges_work(tmp_path: Path) -> None:
    raw, lines = read_yaml(job_file(tmp_path, "a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n"))
    assert raw == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}
    assert lines[("b", "y")] == "line 4"
