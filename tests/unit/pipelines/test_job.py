"""Jobs as people write them: defaults, every kind of mistake with its path, the Python API, what is dumped."""

from __future__ import annotations

import copy
import pickle
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from hetero.errors import JobError
from hetero.observe.summary import Scores, Summary
from hetero.records import Initializer, Pooling
from pipelines import Job as TopLevelJob
from pipelines.job import Job, baseline_job, dump_resolved, load_job, with_counts
from pipelines.problems import field_names, models_in
from pipelines.schema import Tower

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "movielens.yaml"
GOLDEN = Path(__file__).parent / "golden" / "movielens.resolved.yaml"


class MyTower(nn.Module):
    """A user's tower at the top level of a module."""


def raw_job() -> dict[str, Any]:
    """A small job as YAML would give it."""
    return {
        "name": "small",
        "data": {"train": "train.parquet"},
        "features": {
            "sparse": [
                {"name": "user", "tables": ["wide", "deep"]},
                {"name": "film"},
                {"name": "history", "keys_as": "film", "list": True, "pooling": "none", "max_length": 20},
            ],
            "dense": [{"name": "age", "transform": "standard"}],
        },
        "tables": [{"name": "wide", "dim": 1, "optimizer": {"name": "ftrl"}}, {"name": "deep", "dim": 16}],
        "tower": {"name": "wide_and_deep"},
    }


def changed(path: str, value: object) -> dict[str, Any]:
    """The small job with one value put in, at a path such as `tables.1.dim`."""
    raw = copy.deepcopy(raw_job())
    if not path:
        return {**raw, **value}  # type: ignore[dict-item]
    here: Any = raw
    *parents, last = path.split(".")
    for part in parents:
        here = here[int(part)] if isinstance(here, list) else here.setdefault(part, {})
    if isinstance(here, list):
        here[int(last)] = value
    else:
        here[last] = value
    return raw


def error_of(raw: dict[str, Any]) -> str:
    with pytest.raises(JobError) as caught:
        Job(**raw)
    return str(caught.value)


def test_defaults_that_depend_on_other_fields_are_filled_in() -> None:
    job = Job(**raw_job())
    user, film, history = job.features.sparse
    assert (user.column, film.column) == ("user", "film")
    assert film.tables == ("wide", "deep")
    assert history.tables == ("deep",)
    assert history.pooling is Pooling.NONE
    assert job.data.train == ("train.parquet",)
    assert job.data.test == ()
    assert [table.init.kind for table in job.tables] == [Initializer.ZEROS, Initializer.UNIFORM]
    assert job.tables[0].optimizer.lr == 0.1
    assert job.run.folder == "runs/small"
    assert job.roles.servers.count == 1


def test_defaults_that_depend_on_the_mode() -> None:
    def train_of(**train: object) -> tuple[object, ...]:
        job = Job(**(raw_job() | {"tables": [{"name": "wide", "dim": 1}, {"name": "deep", "dim": 4}], "train": train}))
        again = Job(**job.model_dump(mode="json", by_alias=True))
        assert again == job
        return job.train.window, job.train.staleness, job.train.geo_scale

    assert train_of() == ("auto", None, None)
    assert train_of(mode="bounded") == (0, 4, None)
    assert train_of(mode="bounded", staleness=7, window=0) == (0, 7, None)
    assert train_of(mode="async") == (0, None, None)
    assert train_of(mode="geo") == (0, 100, "1/towers")
    assert train_of(mode="geo", geo_scale=1) == (0, 100, "1")


def test_bounded_needs_a_push_of_each_other_tower() -> None:
    raw = raw_job() | {"roles": {"towers": 4}}
    wrong = error_of(raw | {"train": {"mode": "bounded", "staleness": 2}})
    assert "train.staleness: is 2, too small for 4 towers" in wrong
    assert Job(**(raw | {"train": {"mode": "bounded", "staleness": 3}})).train.staleness == 3


def test_shorthands_and_sections_as_classes() -> None:
    raw = raw_job() | {"roles": {"servers": 3, "towers": {"threads": 2}}, "tower": "fm"}
    job = Job(**raw)
    assert (job.roles.servers.count, job.roles.servers.threads) == (3, 1)
    assert (job.roles.towers.count, job.roles.towers.threads) == (1, 2)
    assert Job(**(raw_job() | {"tower": Tower(name="fm"), "roles": job.roles})) == job
    assert Job(**(raw_job() | {"data": {"train": [Path("a"), "b"], "test": Path("c")}})).data.train == ("a", "b")
    assert TopLevelJob is Job


WRONG: dict[str, tuple[str, object, str]] = {
    "unknown section": ("trian", {}, "trian: unknown name `trian`; did you mean `train`?"),
    "unknown name in a list": ("tables.1.dimm", 8, "tables[1].dimm: unknown name `dimm`; did you mean `dim`?"),
    "alias is suggested": ("features.sparse.0.lst", True, "features.sparse[0].lst: unknown name `lst`; did you mean"),
    "setting of another optimizer": ("tables.0.optimizer.eps", 1.0, "tables[0].optimizer.eps: unknown name `eps`"),
    "tower optimizer": ("tower.optimizer.name", "adaam", "tower.optimizer.name: unknown value `adaam`; did you mean"),
    "row optimizer": ("tables.0.optimizer.name", "ftlr", "tables[0].optimizer.name: unknown value `ftlr`; did you me"),
    "row optimizer missing": ("tables.0.optimizer", {}, "tables[0].optimizer.name: is required"),
    "enum": ("data.format", "parket", "data.format: unknown value `parket`; did you mean `parquet`?"),
    "required": ("data", {}, "data.train: is required"),
    "number as text": ("tables.1.dim", "16", "tables[1].dim: must be a whole number, got `16` (text)"),
    "true is no number": ("train.epochs", True, "train.epochs: must be a whole number, got true"),
    "fraction is no count": ("train.epochs", 1.5, "train.epochs: must be a whole number, got 1.5"),
    "below the least": ("tables.1.dim", 0, "tables[1].dim: must be at least 1, got 0"),
    "not above the limit": ("tower.optimizer.lr", 0, "tower.optimizer.lr: must be above 0, got 0"),
    "above the most": ("data.max_malformed_fraction", 2, "data.max_malformed_fraction: must be at most 1, got 2"),
    "nan": ("tables.1.optimizer", {"name": "sgd", "lr": float("nan")}, "tables[1].optimizer.lr: must be a"),
    "role": ("roles.servers", 0, "roles.servers.count: must be at least 1, got 0"),
    "role as text": ("roles.servers", "two", "roles.servers.count: must be a whole number, got `two`"),
    "mapping expected": ("train", [1], "train: must be a mapping of names to values, got a list"),
    "list expected": ("tables", {"wide": {}}, "tables: must be a list, got a mapping"),
    "no paths": ("data.train", [], "data.train: must have at least 1 entry"),
    "name": ("name", "a/b", "name: may hold letters, digits, `_`, `-` and `.` only, got `a/b`"),
    "seed": ("seed", -1, "seed: must be at least 0, got -1"),
    "half a storage": (
        "storage",
        {"memory_bytes": "1GiB"},
        "storage: memory_bytes, directories and ssd_bytes go together; give all three or none",
    ),
    "a size": ("storage.ssd_bytes", "8GB", "storage.ssd_bytes: must be a whole number, got `8GB`"),
    "a small size": ("storage.memory_bytes", "1KiB", "storage.memory_bytes: must be at least"),
    "deltas of rows on SSD": (
        "",
        {
            "storage": {"memory_bytes": "1GiB", "directories": "ssd", "ssd_bytes": "1GiB"},
            "snapshots": {"deltas": 2},
        },
        "snapshots.deltas: is 2, and storage.memory_bytes is given",
    ),
    "window of another mode": (
        "train",
        {"mode": "async", "window": 4},
        "train.window: is 4, and train.mode is `async`: rows are leased in `sync` only",
    ),
    "staleness of sync": (
        "train",
        {"staleness": 4},
        "train.staleness: is 4, and train.mode is `sync`: `sync` never reads a stale row",
    ),
    "staleness of async": (
        "train",
        {"mode": "async", "staleness": 4},
        "train.staleness: is 4, and train.mode is `async`: `async` has no bound",
    ),
    "no staleness": ("train", {"mode": "bounded", "staleness": 0}, "train.staleness: must be at least 1, got 0"),
    "scale of another mode": (
        "train",
        {"mode": "bounded", "geo_scale": 1},
        "train.geo_scale: is 1, and train.mode is `bounded`: only `geo` sends differences",
    ),
    "no scale": ("train", {"mode": "geo", "geo_scale": 0.5}, "train.geo_scale: "),
    "geo over ftrl": ("train", {"mode": "geo"}, "tables[0].optimizer.name: `ftrl` computes weights anew"),
    "no mode": ("train.mode", "sinc", "train.mode: unknown value `sinc`; did you mean `sync`?"),
    "unknown table": (
        "features.sparse.0.tables",
        ["wied"],
        "features.sparse[0].tables[0]: there is no table `wied`; did",
    ),
    "table twice": (
        "features.sparse.0.tables",
        ["deep", "deep"],
        "features.sparse[0].tables[1]: `deep` stands there twi",
    ),
    "in no table": ("features.sparse.0.tables", [], "features.sparse[0].tables: the feature is in no table"),
    "unknown feature": (
        "features.sparse.2.keys_as",
        "flim",
        "features.sparse[2].keys_as: there is no other feature `fli",
    ),
    "own keys": ("features.sparse.2.keys_as", "history", "features.sparse[2].keys_as: there is no other feature `his"),
    "keys of a sharer": (
        "features.sparse.0.keys_as",
        "history",
        "features.sparse[0].keys_as: `history` shares the rows",
    ),
    "keys of other kinds": (
        "features.sparse.1.ids",
        "string",
        "features.sparse[2].keys_as: `film` makes its keys in an",
    ),
    "sequence in a wide table": (
        "features.sparse.2.tables",
        ["wide"],
        "features.sparse[2].tables[0]: `wide` has dim 1,",
    ),
    "sequence of a scalar": (
        "features.sparse.1.pooling",
        "none",
        "features.sparse[1].pooling: `none` hands over a seq",
    ),
    "length of a scalar": (
        "features.sparse.1.max_length",
        3,
        "features.sparse[1].max_length: has no effect on a feature",
    ),
    "buckets of a list": ("features.sparse.2.buckets", [1], "features.sparse[2].buckets: works on one number a row"),
    "buckets fall": (
        "features.sparse.0.buckets",
        [1, 3, 3],
        "features.sparse[0].buckets: must increase, got 3 before 3",
    ),
    "feature twice": (
        "features.sparse.1.name",
        "user",
        "features.sparse[1].name: `user` is the name of features.sparse",
    ),
    "feature twice, dense": (
        "features.dense.0.name",
        "user",
        "features.dense[0].name: `user` is the name of features.sp",
    ),
    "table name twice": ("tables.1.name", "wide", "tables[1].name: `wide` is the name of tables[0] too"),
    "label as a feature": ("features.dense.0.column", "label", "features.dense[0].column: `label` is data.label"),
    "mean alone": ("features.dense.0.mean", 1.0, "features.dense[0]: mean and std go together"),
    "text without a tokenizer": (
        "features.text",
        [{"name": "t", "length": 4}],
        "features.text[0]: give `tokenizer`, the folder of",
    ),
    "text named as another": (
        "features.text",
        [{"name": "user", "length": 4, "vocabulary": 9}],
        "features.text[0].name: `user` is the name of features.sp",
    ),
    "a schedule without an end": (
        "tower.parts",
        [{"name": "text", "optimizer": {"schedule": "cosine"}}],
        "tower.parts[0].optimizer: schedule `cosine` falls until step `steps`",
    ),
    "part twice": (
        "tower.parts",
        [{"name": "text"}, {"name": "text"}],
        "tower.parts[1].name: `text` stands there twice",
    ),
    "task is the label": (
        "data.tasks",
        [{"name": "bought"}, {"name": "bought", "column": "x"}],
        "data.tasks[1].name: `bought` stands there twice",
    ),
    "no features": ("features", {}, "features: has neither sparse, dense nor text features"),
    "more towers than rows": (
        "roles.towers",
        5000,
        "train.batch_size: 1024 rows a step cannot be dealt to 5000 towers",
    ),
    "tower twice": ("tower.class", MyTower, "tower: give `name` or `class`, not both"),
    "tower is no class": ("tower", {"class": "mine"}, "tower: `class` must be a class, got 'mine'"),
    "tower argument": ("tower.args", {"act": nn.ReLU()}, "tower.args: `act` is a ReLU; a job file cannot hold it"),
    "baseline": ("baseline", "logistic", "baseline: unknown value `logistic`; did you mean `logistic_regression`?"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_named_with_its_path(case: str) -> None:
    path, value, message = WRONG[case]
    text = error_of(changed(path, value))
    assert any(line.startswith(message) for line in text.splitlines()), text


def test_mean_and_std_have_no_meaning_without_standard() -> None:
    raw = changed("features.dense.0", {"name": "age", "transform": "log", "mean": 1.0, "std": 2.0})
    assert error_of(raw).startswith("features.dense[0]: mean and std have no effect with transform `log`")


def test_an_unused_table_is_named() -> None:
    raw = raw_job()
    raw["tables"].append({"name": "spare", "dim": 4})
    for feature in raw["features"]["sparse"]:
        feature["tables"] = ["deep"]
    lines = error_of(raw).splitlines()
    assert [line.split(":")[0] for line in lines] == ["tables[0]", "tables[2]"]


def test_a_long_list_of_names_is_cut() -> None:
    raw = raw_job()
    raw["features"]["sparse"] += [{"name": f"f{number}"} for number in range(50)]
    raw["features"]["sparse"][0]["keys_as"] = "nothing"
    assert "(one of: film, history, f0, f1," in error_of(raw)
    assert error_of(raw).endswith("f9 and 40 more)")


def test_every_setting_is_documented() -> None:
    documented = set(re.findall(r"`([a-z_0-9]+)`", (EXAMPLE.parents[1] / "docs" / "job.md").read_text()))
    sections: list[Any] = [Job]
    seen: set[Any] = set()
    while sections:
        section = sections.pop()
        seen.add(section)
        names = field_names(section)
        assert names.keys() - documented == set(), section.__name__
        annotations = [section.model_fields[attribute].annotation for attribute in names.values()]
        sections += [inner for annotation in annotations for inner in models_in(annotation) if inner not in seen]
    assert len(seen) >= 17


def test_all_mistakes_stand_in_one_message() -> None:
    raw = changed("tables.1.dim", 0)
    raw["train"] = {"batch_size": 0, "epoch": 1}
    raw["extra"] = 1
    paths = [line.split(":")[0] for line in error_of(raw).splitlines()]
    assert paths == ["tables[1].dim", "train.batch_size", "train.epoch", "extra"]


def test_the_error_crosses_processes() -> None:
    with pytest.raises(JobError) as caught:
        Job(**changed("tables.1.dim", 0))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_tower_class_becomes_its_import_path() -> None:
    for given in (MyTower, {"class": MyTower}):
        job = Job(**(raw_job() | {"tower": given}))
        assert job.tower.name == f"{__name__}:MyTower"
    job = Job(**(raw_job() | {"tower": {"class": MyTower, "args": {"hidden": (64, 32)}}}))
    assert job.tower.args == {"hidden": [64, 32]}


def test_a_tower_class_made_in_a_function_is_refused() -> None:
    class Hidden(nn.Module):
        pass

    assert "cannot be imported by its name" in error_of(raw_job() | {"tower": Hidden})


def test_a_tower_class_of_the_running_program_has_a_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Main(nn.Module):
        pass

    Main.__module__, Main.__qualname__ = "__main__", "Main"
    monkeypatch.setattr(sys.modules["__main__"], "Main", Main, raising=False)
    assert Job(**(raw_job() | {"tower": Main})).tower.name == "__main__:Main"


def test_with_counts_changes_counts_only_and_checks_again() -> None:
    job = Job(**(raw_job() | {"roles": {"servers": {"count": 1, "threads": 2}}}))
    more = with_counts(job, servers=4, towers=2)
    assert (more.roles.servers.count, more.roles.servers.threads, more.roles.towers.count) == (4, 2, 2)
    assert with_counts(job) == job
    with pytest.raises(JobError, match=r"train\.batch_size: 1024 rows"):
        with_counts(job, towers=2000)


def test_the_dump_loads_to_an_equal_job(tmp_path: Path) -> None:
    raw = raw_job() | {"seed": 1 << 62, "baseline": "logistic_regression", "name": "1e3"}
    raw["features"]["sparse"][0]["buckets"] = [1e-5, 2]
    raw["tower"] = {"name": "din", "args": {"hidden": [8], "act": "yes", "deep": {"a": None}}}
    job = Job(**raw)
    (tmp_path / "job.yaml").write_text(dump_resolved(job))
    again = load_job(tmp_path / "job.yaml")
    assert again == job
    assert dump_resolved(again) == dump_resolved(job)


def test_the_demo_job_resolves_as_it_did() -> None:
    """A changed default shows up here: look at the difference, then write the new text into the golden file."""
    assert dump_resolved(load_job(EXAMPLE)) == GOLDEN.read_text()
    assert load_job(GOLDEN) == load_job(EXAMPLE)


def test_the_baseline_has_one_weight_for_every_value_of_the_same_features() -> None:
    job = Job(**(raw_job() | {"baseline": "logistic_regression", "seed": 5, "train": {"batch_size": 64, "epochs": 3}}))
    plain = baseline_job(job)
    assert [feature.name for feature in plain.features.sparse] == ["user", "film", "history"]
    assert {feature.tables for feature in plain.features.sparse} == {("linear",)}
    assert plain.features.sparse[2].keys_as is None
    assert plain.features.sparse[2].pooling is Pooling.MEAN
    assert [(table.dim, table.optimizer.name) for table in plain.tables] == [(1, "ftrl")]
    assert plain.tower.name == "logistic_regression"
    assert (plain.seed, plain.train, plain.data, plain.features.dense) == (
        job.seed,
        job.train,
        job.data,
        job.features.dense,
    )
    assert plain.baseline is None
    with pytest.raises(JobError, match="baseline: the job has none"):
        baseline_job(plain)


def test_fit_and_evaluate_hand_over_to_the_pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []
    summary = Summary(
        name="x", run_folder="r", seed=0, placement="p", steps=1, samples=1, samples_per_s=1.0, wall_s=1.0
    )

    def fit(job: Job, **given: object) -> Summary:
        calls.append(("fit", job.name, given["run_folder"], given["address"], given["in_process"]))
        return summary

    def evaluate_run(folder: Path, **given: object) -> Scores:
        calls.append(("evaluate", folder, given["data"]))
        return Scores(auc=0.5, logloss=0.7, samples=3)

    train, evaluate = types.ModuleType("pipelines.train"), types.ModuleType("pipelines.evaluate")
    monkeypatch.setattr(train, "fit", fit, raising=False)
    monkeypatch.setattr(evaluate, "evaluate_run", evaluate_run, raising=False)
    monkeypatch.setitem(sys.modules, "pipelines.train", train)
    monkeypatch.setitem(sys.modules, "pipelines.evaluate", evaluate)
    job = Job(**raw_job())
    assert job.fit() is summary
    job.fit(run_folder="elsewhere", in_process=True)
    assert job.evaluate().auc == 0.5
    assert calls == [
        ("fit", "small", Path("runs/small"), None, False),
        ("fit", "small", Path("elsewhere"), None, True),
        ("evaluate", Path("runs/small"), None),
    ]
