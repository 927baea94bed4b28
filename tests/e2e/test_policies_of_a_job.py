"""A job whose tables admit and drop keys, from its file to what the commands tell of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hetero.checkpoint.manifest import FileKind
from hetero.checkpoint.rows import read_part
from hetero.checkpoint.snapshot import Snapshot
from hetero.checkpoint.words import read_words, words_kind
from hetero.observe.events import read_events
from tests.support.cli import Ran, hetero_here, write_job
from tests.support.jobs import write_data

TABLES: list[dict[str, Any]] = [
    {"name": "wide", "dim": 1, "optimizer": {"name": "ftrl"}},
    {
        "name": "deep",
        "dim": 4,
        "admission": {"after": 2, "forget_days": 1},
        "eviction": {"expire_days": 2, "min_score": 0.4, "decay": 0.9},
    },
]
TRAIN = {"batch_size": 64, "epochs": 1, "day_steps": 10, "window": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, and runs/small: trained in one process."""
    folder = tmp_path_factory.mktemp("policies")
    write_data(folder / "train.parquet", rows=3000, seed=1)
    write_data(folder / "test.parquet", rows=200, seed=2)
    write_job(folder / "job.yaml", tables=TABLES, train=TRAIN)
    ran = hetero_here("train", str(folder / "job.yaml"), "--run", str(folder / "runs/small"), "--in-process", "--json")
    assert ran.code == 0, ran.err + ran.out
    return folder


def told(folder: Path, *words: str) -> dict[str, Any]:
    ran = hetero_here(words[0], str(folder / "runs/small"), *words[1:], "--json")
    assert ran.code == 0, ran.err + ran.out
    return ran.json


def refused(folder: Path, **sections: Any) -> str:
    write_job(folder / "wrong.yaml", **sections)
    ran: Ran = hetero_here("train", str(folder / "wrong.yaml"), "--in-process")
    assert ran.code != 0
    return ran.err


def test_the_summary_and_the_events_count_what_went(folder: Path) -> None:
    policies = json.loads((folder / "runs/small/summary.json").read_text())["policies"]
    dropped = {name: count for name, count in policies.items() if "/" in name}
    assert dropped["low_score/deep/item"] > 0
    assert dropped["forgotten/deep/item"] > 0
    assert policies["waiting"] > 0
    assert not any(name.endswith("wide/item") for name in dropped)
    events = [e.fields for e in read_events(folder / "runs/small/events.jsonl") if e.name == "rows.dropped"]
    assert {event["day"] for event in events} == {1, 2, 3, 4}
    for name, count in dropped.items():
        reason, _, table = name.partition("/")
        assert count == sum(int(str(e["rows"])) for e in events if (e["table"], e["reason"]) == (table, reason))


def some_keys(folder: Path) -> dict[str, int]:
    """A key of deep/item whose row is there, one that waits, and one that was dropped."""
    model = Snapshot.open(folder / "runs/small/model")
    (table,) = [t.index for group in model.manifest.job.groups for t in group.tables if t.name == "deep/item"]
    found: dict[str, int] = {}
    for entry in model.manifest.of_kind(FileKind.WORDS):
        keys, _ = read_words(model, entry)
        if (keys.tables == table).any():
            found[words_kind(entry)] = int(keys.keys[keys.tables == table][0])
    for entry in model.manifest.of_kind(FileKind.ROWS):
        for chunk in read_part(model, entry):
            if (chunk.keys.tables == table).any():
                found["held"] = int(chunk.keys.keys[chunk.keys.tables == table][0])
    return found


def test_a_key_tells_when_it_came_and_why_it_stays_waits_or_went(folder: Path) -> None:
    stories = {
        what: told(folder, "inspect", "--key", str(key), "--table", "deep/item")["rows"][0]
        for what, key in some_keys(folder).items()
    }
    held = stories["held"]
    assert set(held["statistics"]) == {"shows", "clicks", "score", "seen_day", "came_day", "model_day"}
    assert held["statistics"]["model_day"] == 4
    assert held["came"].startswith("on day ")
    assert "if no step sees it again, it goes when day" in held["why"]
    assert "it waits for a row: 1 steps have seen it" in stories["waiting"]["why"]
    assert "its row was dropped when day" in stories["dropped"]["why"]
    assert "its score fell below 0.4" in stories["dropped"]["why"]


def test_shrinking_writes_a_model_without_what_goes(folder: Path) -> None:
    counted = told(folder, "shrink", "--day", "7")
    assert counted["folder"] is None
    assert counted["dropped"]["deep/item"]["expired"] > 0
    written = told(folder, "shrink", "--day", "7", "--out", str(folder / "runs/small/shrunk"))
    assert written["dropped"] == counted["dropped"]
    small = hetero_here("inspect", str(folder / "runs/small/shrunk"), "--json").json
    rows = sum(group["rows"] for group in small["groups"])
    assert rows == sum(written["rows"].values())
    assert rows < sum(group["rows"] for group in told(folder, "inspect")["groups"])
    out = ("--out", str(folder / "scores.parquet"))
    assert hetero_here("predict", str(folder / "runs/small/shrunk"), *out, "--in-process").code == 0
    assert hetero_here("export", str(folder / "runs/small/shrunk"), "--out", str(folder / "exported")).code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--day", "3"), "trained up to day 4; give a later one"),
        (("--out", "{folder}/elsewhere"), "give a folder inside"),
        (("--out", "{folder}/runs/small/model"), "is there already"),
    ],
)
def test_what_shrink_refuses(folder: Path, words: tuple[str, str], said: str) -> None:
    ran = hetero_here("shrink", str(folder / "runs/small"), words[0], words[1].format(folder=folder))
    assert ran.code != 0
    assert said in ran.err.replace("\n", " ")


@pytest.mark.parametrize(
    ("table", "train", "said"),
    [
        ({"admission": {"after": 2, "probability": 0.5}}, TRAIN, "`after`, `probability` or `score`, one of them"),
        ({"admission": {"probability": 0.001}}, TRAIN, "0.01"),
        ({"admission": {"after": 2, "forget_days": 1}}, {"batch_size": 64}, "train.day_steps"),
        ({"admission": {"score": 2}}, {"batch_size": 64}, "train.day_steps"),
        ({"eviction": {"expire_days": 1}}, {"batch_size": 64}, "train.day_steps"),
        ({"eviction": {"decay": 0.5}}, TRAIN, "drops nothing"),
        ({"eviction": {"capacity": 1000}}, TRAIN, "65536"),
        ({"admission": {"after": 2}}, {"batch_size": 64, "mode": "geo"}, "copies of their own"),
    ],
)
def test_what_a_job_file_may_not_say(folder: Path, table: dict[str, Any], train: dict[str, Any], said: str) -> None:
    tables = [{"name": "wide", "dim": 1}, {"name": "deep", "dim": 4, **table}]
    assert said in refused(folder, tables=tables, train=train).replace("\n", " ")


def test_tiers_refuses_what_it_cannot_answer(folder: Path) -> None:
    job = str(folder / "job.yaml")
    assert "give --memory 8GiB" in hetero_here("tiers", job).err.replace("\n", " ")
    assert "is no size" in hetero_here("tiers", job, "--memory", "much").err
    assert "give --steps" in hetero_here("tiers", job, "--memory", "64MiB", "--zipf", "1.1").err
