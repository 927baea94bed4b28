"""From a job to its JobSpec: tables numbered and fused, lookups named and ordered, paths found, statistics filled."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from hetero.data.token_store import write_tokens
from hetero.errors import JobError
from hetero.records import (
    DenseFeature,
    DenseTransform,
    DiskIo,
    IdKind,
    Initializer,
    InitSpec,
    JobSpec,
    LookupSpec,
    PartSpec,
    Pooling,
    RoleSpec,
    RowOptimizer,
    RowOptimizerSpec,
    StorageSpec,
    TextFeature,
    TowerSpec,
)
from hetero.records.mesh import LrSchedule, MeshSpec
from pipelines.build import check_tower
from pipelines.job import Job, complete, dump_resolved, load_job, resolve


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with train.parquet and test.parquet; ages 20, 30, 40, 50."""
    table = pa.table({"label": [0.0, 1.0, 0.0, 1.0], "user": [1, 2, 3, 4], "age": [20.0, 30.0, 40.0, 50.0]})
    for name in ("train", "test"):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    return tmp_path


def make(folder: Path, **changes: Any) -> Job:
    """A job over four sparse features and three tables, two of which agree in all but their name."""
    sections: dict[str, Any] = {
        "name": "small",
        "seed": 7,
        "data": {"train": str(folder / "train.parquet"), "test": [str(folder / "test.parquet")]},
        "features": {
            "sparse": [
                {"name": "user", "tables": ["wide", "deep"]},
                {"name": "film", "tables": ["deep", "wide", "extra"]},
                {"name": "history", "keys_as": "film", "list": True, "pooling": "none", "tables": ["deep"]},
                {"name": "hour", "tables": ["wide"], "buckets": [6, 18]},
            ],
        },
        "tables": [
            {"name": "wide", "dim": 1, "optimizer": {"name": "ftrl", "lr": 0.2, "l1": 0.5}},
            {"name": "deep", "dim": 8},
            {"name": "extra", "dim": 8},
        ],
        "tower": {"name": "wide_and_deep", "args": {"hidden": [8]}, "optimizer": {"name": "sgd", "lr": 0.5}},
    }
    return Job(**{**sections, **changes})


def test_storage_is_resolved_with_sizes_as_people_write_them(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data)
    assert resolve(make(data)).storage is None
    sizes = {"memory_bytes": "8MiB", "directories": ["ssd", "/disk"], "ssd_bytes": "2 TiB", "io": "cached"}
    assert resolve(make(data, storage=sizes)).storage == StorageSpec(
        memory_bytes=8 << 20, directories=(str(data / "ssd"), "/disk"), ssd_bytes=2 << 40, io=DiskIo.CACHED
    )


def tables_of(spec: JobSpec) -> list[tuple[int, int, str]]:
    return [(group, table.index, table.name) for group, one in enumerate(spec.groups) for table in one.tables]


def test_each_feature_has_a_table_of_its_own_and_equal_policies_are_fused(data: Path) -> None:
    spec = resolve(make(data))
    assert tables_of(spec) == [
        (0, 0, "wide/user"),
        (0, 1, "wide/film"),
        (0, 2, "wide/hour"),
        (1, 3, "deep/user"),
        (1, 4, "deep/film"),
        (1, 5, "extra/film"),
    ]
    wide, deep = spec.groups
    assert (wide.dim, deep.dim) == (1, 8)
    assert wide.optimizer == RowOptimizerSpec(kind=RowOptimizer.FTRL, lr=0.2, l1=0.5)
    assert deep.optimizer == RowOptimizerSpec(kind=RowOptimizer.ROWWISE_ADAGRAD, lr=0.05)
    assert wide.init.kind is Initializer.ZEROS
    assert deep.init == InitSpec(kind=Initializer.UNIFORM, scale=0.01)


def test_tables_that_differ_in_anything_are_not_fused(data: Path) -> None:
    for change in ({"dim": 4}, {"optimizer": {"name": "sgd"}}, {"init": {"kind": "normal"}}):
        job = make(data)
        raw = job.model_dump(mode="json", by_alias=True)
        raw["tables"][2] = {**raw["tables"][2], **change}
        assert len(resolve(Job(**raw)).groups) == 3


def test_seeds_are_hashes_of_job_seed_and_name(data: Path) -> None:
    for seed in (7, 8):
        for table in (table for group in resolve(make(data, seed=seed)).groups for table in group.tables):
            assert table.seed == xxhash.xxh64_intdigest(f"{seed}/{table.name}".encode())


def test_lookups_are_named_for_the_tower_and_stand_by_group_then_feature(data: Path) -> None:
    spec = resolve(make(data))
    assert [(one.name, one.feature, one.group, one.table, one.dim) for one in spec.lookups] == [
        ("user@wide", 0, 0, 0, 1),
        ("film@wide", 1, 0, 1, 1),
        ("hour@wide", 3, 0, 2, 1),
        ("user", 0, 1, 3, 8),
        ("film@deep", 1, 1, 4, 8),
        ("film@extra", 1, 1, 5, 8),
        ("history", 2, 1, 4, 8),
    ]
    assert spec.lookups[-1] == LookupSpec(name="history", feature=2, group=1, table=4, dim=8, pooling=Pooling.NONE)
    assert len({one.name for one in spec.lookups}) == len(spec.lookups)


def test_everything_else_arrives(data: Path) -> None:
    job = make(
        data,
        train={"batch_size": 64, "epochs": 3, "max_steps": 9},
        roles={"readers": 2, "servers": {"count": 3, "threads": 2}},
        run={"deadline_s": 5},
        data={
            "train": [str(data / "*.parquet")],
            "label": "label",
            "gauc": "user",
            "weight": "w",
            "max_malformed_fraction": 0.5,
            "shuffle": False,
        },
    )
    spec = resolve(job)
    assert (spec.batch_size, spec.epochs, spec.max_steps, spec.deadline_s) == (64, 3, 9, 5.0)
    assert (spec.readers, spec.servers, spec.towers) == (RoleSpec(count=2), RoleSpec(count=3, threads=2), RoleSpec())
    assert spec.tower == TowerSpec(name="wide_and_deep", args={"hidden": [8]}, optimizer="sgd", lr=0.5)
    assert spec.test is None
    assert (spec.train.gauc_column, spec.train.weight, spec.train.shuffle) == ("user", "w", False)
    assert (spec.train.seed, spec.train.max_malformed_fraction) == (7, 0.5)
    user, film, history, hour = spec.train.sparse
    assert (user.column, user.ids, user.is_list) == ("user", IdKind.AUTO, False)
    assert history.is_list
    assert hour.boundaries == (6.0, 18.0)
    assert film.boundaries is None


def test_only_training_data_is_shuffled(data: Path) -> None:
    spec = resolve(make(data))
    assert spec.test is not None
    assert (spec.train.shuffle, spec.test.shuffle) == (True, False)
    assert spec.test.sparse == spec.train.sparse


def test_means_and_deviations_come_from_the_training_data_unless_given(data: Path) -> None:
    features = {
        "dense": [
            {"name": "age", "transform": "standard"},
            {"name": "years", "column": "age", "transform": "standard", "mean": 1.0, "std": 2.0},
            {"name": "plain", "column": "age"},
        ]
    }
    job = make(data, features=features, tables=[])
    age, years, plain = resolve(job).train.dense
    assert age.mean == pytest.approx(35.0)
    assert age.std == pytest.approx(125.0**0.5)
    assert years == DenseFeature(name="years", column="age", transform=DenseTransform.STANDARD, mean=1.0, std=2.0)
    assert (plain.mean, plain.std) == (0.0, 1.0)


def test_a_complete_job_needs_neither_folder_nor_training_data(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data)
    features = {"dense": [{"name": "age", "transform": "standard"}]}
    job = make(data, features=features, tables=[], data={"train": "train.parquet", "test": "test.parquet"})
    done = complete(job)
    (data / "job.resolved.yaml").write_text(dump_resolved(done))
    before = resolve(job)
    (data / "train.parquet").unlink()
    monkeypatch.chdir("/")
    assert complete(done) == done
    assert resolve(load_job(data / "job.resolved.yaml")) == before


def test_relative_paths_are_tried_here_and_then_beside_the_job(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = data / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    job = make(data, data={"train": "train.parquet"})
    assert resolve(job, folder=data).train.paths == (str(data / "train.parquet"),)
    (here / "train.parquet").write_bytes((data / "train.parquet").read_bytes())
    assert resolve(job, folder=data).train.paths == (str(here / "train.parquet"),)
    with pytest.raises(JobError) as caught:
        resolve(make(data, data={"train": ["train.parquet", "nothing-*.csv"]}), folder=data)
    assert str(caught.value) == f"data.train[1]: no file at `nothing-*.csv`, neither here ({here}) nor in {data}"


def test_globs_are_found_beside_the_job(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data / "here").mkdir()
    monkeypatch.chdir(data / "here")
    assert resolve(make(data, data={"train": "t*.parquet"}), folder=data).train.paths == (str(data / "t*.parquet"),)


def test_variables_and_uris(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_DATA", str(data))
    monkeypatch.setenv("HOME", str(data))
    monkeypatch.delenv("HETERO_NOWHERE", raising=False)
    paths = ["${HETERO_DATA}/train.parquet", "~/train.parquet", "s3://bucket/${HETERO_DATA}"]
    assert resolve(make(data, data={"train": paths})).train.paths == (
        str(data / "train.parquet"),
        str(data / "train.parquet"),
        f"s3://bucket/{data}",
    )
    with pytest.raises(JobError) as caught:
        resolve(make(data, data={"train": "x", "test": ["y", "${HETERO_NOWHERE}/x"]}))
    assert str(caught.value).startswith("data.test[1]: `${HETERO_NOWHERE}` is not set in the environment")


def test_resolving_says_nothing_about_absolute_paths(data: Path) -> None:
    """The data package names a missing file; only a relative one has two places to name."""
    gone = os.path.join(data, "gone.parquet")
    assert resolve(make(data, data={"train": gone})).train.paths == (gone,)


def joint(folder: Path, **tower: Any) -> Job:
    """A job of text and clicks whose tokenizer lies beside the data."""
    write_tokens(folder / "tokens", [np.arange(30) % 20], tokenizer="char", vocabulary=20, mask=19)
    text = {"name": "query", "column": "tokens", "length": 12, "tokenizer": str(folder / "tokens")}
    sparse = [{"name": "user"}]
    args = {"transformer": {"layers": 2, "width": 16, "heads": 2}}
    return make(
        folder,
        features={"sparse": sparse, "text": [text]},
        tables=[{"name": "deep", "dim": 4}],
        tower={"name": "joint", "args": args, **tower},
        roles={"towers": 2},
    )


def test_texts_parts_and_mesh_are_resolved(data: Path) -> None:
    optimizer = {"name": "adamw", "lr": 0.5, "warmup": 3, "schedule": "linear", "steps": 9, "clip": 1.0}
    part = {"name": "text", "optimizer": optimizer, "freeze": True, "from": "runs/x"}
    job = complete(joint(data, parts=[part], mesh={"pp": 2, "tp": 2}))
    spec = resolve(job)
    assert spec.train.texts == (TextFeature(name="query", column="tokens", length=12, vocabulary=20, mask=19),)
    assert spec.tower.parts == (
        PartSpec(
            name="text",
            lr=0.5,
            warmup=3,
            schedule=LrSchedule.LINEAR,
            steps=9,
            clip=1.0,
            frozen=True,
            start=os.path.abspath("runs/x"),
        ),
    )
    assert spec.tower.mesh == MeshSpec(pp=2, dp=2, tp=2, micro_batches=2)
    check_tower(spec)
    (data / "tokens" / "meta.json").unlink()  # a complete job needs the tokenizer no more
    (data / "job.yaml").write_text(dump_resolved(job))
    assert resolve(load_job(data / "job.yaml")) == spec


def test_a_folder_without_a_tokenizer_is_named(data: Path) -> None:
    job = joint(data)
    (data / "tokens" / "meta.json").unlink()
    with pytest.raises(JobError, match=r"features.text\[0\].tokenizer: .* holds no tokens"):
        resolve(job)


@pytest.mark.parametrize(
    ("tower", "said"),
    [
        ({"mesh": {"pp": 3}}, r"mesh.pp: 3 stages .* of 2 blocks"),
        ({"mesh": {"tp": 4}}, "kv_heads 2 does not divide by tp 4"),
        ({"mesh": {"pp": 2}, "args": {"pooling": "cls"}}, "texts are pooled by `mean`, without a `masked` loss"),
        ({"mesh": {"pp": 2}, "args": {"masked": {}}}, "texts are pooled by `mean`, without a `masked` loss"),
    ],
)
def test_a_mesh_that_a_text_half_cannot_lie_on_is_refused(data: Path, tower: dict[str, Any], said: str) -> None:
    args = {"transformer": {"layers": 2, "width": 16, "heads": 2}, **tower.pop("args", {})}
    with pytest.raises(JobError, match=said):
        check_tower(resolve(joint(data, args=args, **tower)))
