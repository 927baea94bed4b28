"""Overrides: paths, YAML values, and what cannot be set."""

from __future__ import annotations

from typing import Any

import pytest

from hetero.errors import JobError
from pipelines.overrides import apply_overrides, parse_override

RAW: dict[str, Any] = {"train": {"epochs": 1}, "tables": [{"dim": 1}, {"dim": 16}], "roles": {"servers": 2}}


def applied(*overrides: str) -> dict[str, Any]:
    return apply_overrides(RAW, overrides, origins={})[0]


def test_values_are_put_in_and_the_rest_stays() -> None:
    result = applied("train.batch_size=8192", "tables[1].optimizer.lr=1e-2", "tower={name: fm}", "roles.servers=4")
    assert result == {
        "train": {"epochs": 1, "batch_size": 8192},
        "tables": [{"dim": 1}, {"dim": 16, "optimizer": {"lr": 0.01}}],
        "roles": {"servers": 4},
        "tower": {"name": "fm"},
    }
    assert RAW["train"] == {"epochs": 1}
    assert RAW["tables"][1] == {"dim": 16}


def test_later_ones_win_and_whole_entries_may_be_set() -> None:
    assert applied("tables[0]={dim: 3}", "tables[0].dim=4", "train.epochs=2", "train.epochs=3") == {
        **RAW,
        "tables": [{"dim": 4}, {"dim": 16}],
        "train": {"epochs": 3},
    }


def test_a_value_may_hold_the_equals_sign_or_be_empty() -> None:
    assert parse_override("data.train=s3://bucket/x?endpoint_override=y") == (
        ("data", "train"),
        "s3://bucket/x?endpoint_override=y",
    )
    assert parse_override("train.max_steps=") == (("train", "max_steps"), None)
    assert parse_override("features.sparse[0].tables[1]=deep") == (("features", "sparse", 0, "tables", 1), "deep")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epochs", "--set train.epochs: has no value"),
        ("=3", "`` is no path"),
        ("[0].dim=3", "`[0].dim` is no path"),
        ("train..epochs=3", "`train..epochs` is no path"),
        ("tables[x].dim=3", "`tables[x].dim` is no path"),
        ("tables[1].=3", "`tables[1].` is no path"),
        ("tables[2].dim=3", "`tables` has 2 entries, numbered from 0"),
        ("tables.deep.dim=3", "`tables` is a list; choose an entry by its number"),
        ("train[0]=3", "`train` is no list"),
        ("roles.servers.threads=2", "`roles.servers` is `2`, no mapping"),
        ("train={epochs: 1", "--set train={epochs: 1, line 1, column"),
        ("train={a: 1, a: 2}", "`a` is given twice"),
    ],
)
def test_what_cannot_be_set_is_said(override: str, message: str) -> None:
    with pytest.raises(JobError) as caught:
        applied(override)
    assert message in str(caught.value)


def test_origins_follow_the_values() -> None:
    origins: dict[tuple[str | int, ...], str] = {
        ("tables",): "line 3",
        ("tables", 0): "line 4",
        ("tables", 0, "dim"): "line 4",
    }
    _, found = apply_overrides(RAW, ["tables[0]={dim: 2}", "new.part=1"], origins=origins)
    assert found == {
        ("tables",): "line 3",
        ("tables", 0): "from --set tables[0]={dim: 2}",
        ("new",): "from --set new.part=1",
        ("new", "part"): "from --set new.part=1",
    }
