"""Scoring, exporting and looking into a trained model from the command line, as a person would."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from hetero.data.hashing import hash_text
from hetero.metrics.auc import exact_auc
from hetero.serving.model import ServedModel
from pipelines.job import dump_resolved, load_job, with_counts
from tests.support.cli import hetero, hetero_here, write_job
from tests.support.jobs import write_data
from tests.support.served import held_out

COLUMNS = "user,item,tags"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, and runs/small: trained in one process. test.parquet ends with ids never seen."""
    folder = tmp_path_factory.mktemp("predict")
    write_data(folder / "train.parquet", rows=3000, seed=1)
    write_data(folder / "test.parquet", rows=1000, seed=2)
    held_out(folder / "held_out.parquet", rows=300)
    write_job(folder / "job.yaml")
    ran = hetero_here("train", str(folder / "job.yaml"), "--run", str(folder / "runs/small"), "--in-process", "--json")
    assert ran.code == 0, ran.err + ran.out
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> ServedModel:
    ran = hetero_here("export", str(folder / "runs/small"), "--out", str(folder / "exported"), "--json")
    assert ran.code == 0, ran.err + ran.out
    assert ran.json["tables"]["deep/item"] > 100
    assert ran.json["warnings"] == []
    return ServedModel.open(folder / "exported")


def predicted(folder: Path, *words: str, data: str = "held_out.parquet", out: str = "out.parquet") -> pa.Table:
    """What `hetero predict` writes of a file in the folder."""
    ran = hetero_here(
        *("predict", str(folder / "runs/small"), "--data", str(folder / data), "--out", str(folder / out)),
        *("--in-process", "--json", *words),
    )
    assert ran.code == 0, ran.err + ran.out
    return pq.read_table(folder / out)


def test_predictions_stand_beside_their_rows_and_equal_the_exported_models(folder: Path, model: ServedModel) -> None:
    rows = pq.read_table(folder / "held_out.parquet")
    table = predicted(folder, "--columns", COLUMNS)
    assert table.column_names == ["user", "item", "tags", "label", "prediction"]
    for name in ("user", "item", "tags", "label"):
        assert table[name].to_pylist() == rows[name].to_pylist()
    scores = table["prediction"].to_numpy()
    np.testing.assert_allclose(model.score(rows).predictions, scores, rtol=0, atol=1e-6)
    assert np.isfinite(scores).all()


def test_predictions_of_the_test_data_have_the_trainers_auc(folder: Path) -> None:
    ran = hetero_here(
        "predict", str(folder / "runs/small"), "--out", str(folder / "test_scores.parquet"), "--in-process", "--json"
    )
    assert ran.code == 0, ran.err + ran.out
    assert ran.json["rows"] == 1000
    table = pq.read_table(folder / "test_scores.parquet")
    summary = json.loads((folder / "runs/small/summary.json").read_text())
    weights = pq.read_table(folder / "test.parquet")["weight"].to_numpy()
    auc = exact_auc(table["label"].to_numpy(), table["prediction"].to_numpy(), weights=weights)
    assert auc == pytest.approx(summary["auc"], abs=1e-12)


def test_scoring_creates_no_rows_and_changes_no_file(folder: Path) -> None:
    before = {path: path.read_bytes() for path in (folder / "runs/small").rglob("*") if path.is_file()}
    predicted(folder)
    after = {path: path.read_bytes() for path in (folder / "runs/small").rglob("*") if path.is_file()}
    assert before == after


def test_data_without_labels_and_with_other_columns_scores(folder: Path) -> None:
    rows = pq.read_table(folder / "held_out.parquet")
    bare = rows.drop_columns(["label"]).append_column("label_of_others", rows["label"])
    pq.write_table(bare, folder / "bare.parquet")
    table = predicted(folder, data="bare.parquet", out="bare_out.parquet")
    assert table.column_names == ["prediction"]
    assert table.equals(predicted(folder).select(["prediction"]))


def test_a_csv_file_of_the_same_integers_gives_the_same_keys(folder: Path, model: ServedModel) -> None:
    rows = pq.read_table(folder / "held_out.parquet").drop_columns(["tags", "history"])
    joined = {
        name: [
            "|".join(str(value) for value in cell or [])
            for cell in pq.read_table(folder / "held_out.parquet")[name].to_pylist()
        ]
        for name in ("tags", "history")
    }
    for name, cells in joined.items():
        rows = rows.append_column(name, pa.array(cells))
    pacsv.write_csv(rows, folder / "held_out.csv")
    scores = predicted(folder, "--columns", "item", data="held_out.csv", out="csv_out.parquet")
    wanted = predicted(folder)["prediction"].to_numpy()
    np.testing.assert_allclose(scores["prediction"].to_numpy()[:-4], wanted[:-4], rtol=0, atol=1e-6)
    assert scores["item"].to_pylist()[0] == str(rows["item"][0].as_py())
    served = np.concatenate([part.predictions for part in model.score_files([str(folder / "held_out.csv")])])
    np.testing.assert_allclose(served, scores["prediction"].to_numpy(), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_through_ray_with_two_readers_and_two_towers_the_order_is_the_same(folder: Path) -> None:
    run = folder / "runs/laid_out"
    shutil.copytree(folder / "runs/small", run)
    job = with_counts(load_job(run / "job.resolved.yaml"), readers=2, servers=1, towers=2)
    (run / "job.resolved.yaml").write_text(dump_resolved(job))
    data, out = str(folder / "held_out.parquet"), folder / "ray.parquet"
    ran = hetero("predict", str(run), "--data", data, "--columns", COLUMNS, "--out", str(out), "--json", cwd=folder)
    assert ran.code == 0, ran.err + ran.out
    table, alone = pq.read_table(out), predicted(folder, "--columns", COLUMNS)
    assert table.drop_columns(["prediction"]).equals(alone.drop_columns(["prediction"]))
    np.testing.assert_allclose(table["prediction"].to_numpy(), alone["prediction"].to_numpy(), rtol=0, atol=1e-6)


def test_malformed_rows_fail_or_are_left_out_as_the_job_says(folder: Path) -> None:
    rows = pq.read_table(folder / "held_out.parquet")
    x = rows["x"].to_pylist()
    x[5] = x[200] = float("inf")
    pq.write_table(
        rows.set_column(rows.column_names.index("x"), "x", pa.array(x)), folder / "bad.parquet", row_group_size=64
    )
    words = ("--data", str(folder / "bad.parquet"), "--columns", "item", "--in-process", "--json")
    out = folder / "bad_out.parquet"
    ran = hetero_here("predict", str(folder / "runs/small"), "--out", str(out), *words)
    assert ran.code == 2
    assert "rows (" in ran.json["error"]["message"]
    assert "are malformed" in ran.json["error"]["message"]
    assert not out.exists()
    assert not Path(f"{out}.partial").exists()
    run = folder / "runs/lenient"
    shutil.copytree(folder / "runs/small", run)
    job = (run / "job.resolved.yaml").read_text()
    (run / "job.resolved.yaml").write_text(job.replace("max_malformed_fraction: 0.0", "max_malformed_fraction: 0.1"))
    ran = hetero_here("predict", str(run), "--out", str(out), *words)
    assert ran.code == 0, ran.err + ran.out
    assert (ran.json["rows"], ran.json["malformed"]) == (rows.num_rows - 2, 2)
    items = rows["item"].to_pylist()
    assert pq.read_table(out)["item"].to_pylist() == [item for at, item in enumerate(items) if at not in (5, 200)]
    told = [json.loads(line) for line in Path(f"{out}.malformed.jsonl").read_text().splitlines()]
    assert [(row["line"], "inf" in row["reason"]) for row in told] == [(5, True), (200 - 3 * 64, True)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--columns", "usr"], "there is no column 'usr' to keep; the first file has"),
        (["--columns", "prediction"], "the output's own column is called `prediction`"),
        (["--out", "held_out.parquet"], "is among the files to be scored and would be overwritten"),
        (["--address", "auto"], "exclude each other"),
    ],
)
def test_predict_says_what_cannot_be(folder: Path, words: list[str], message: str) -> None:
    out = words.pop() if words[0] == "--out" else "wrong.parquet"
    words = [word for word in words if word != "--out"]
    given = ("--data", str(folder / "held_out.parquet"), "--out", str(folder / out), "--in-process", "--json")
    ran = hetero_here("predict", str(folder / "runs/small"), *given, *words)
    assert (ran.code, message in ran.json["error"]["message"]) == (2, True), ran.out
    assert not (folder / "wrong.parquet").exists()


def test_a_folder_without_a_run_or_a_model_is_named(folder: Path, tmp_path: Path) -> None:
    missing = hetero_here("inspect", str(tmp_path / "none"), "--json")
    assert "there is no such folder" in missing.json["error"]["message"]
    no_run = hetero_here("inspect", str(tmp_path), "--json")
    assert "no run is here or around it" in no_run.json["error"]["message"]
    shutil.copy(folder / "runs/small/job.resolved.yaml", tmp_path)
    no_model = hetero_here("inspect", str(tmp_path), "--json")
    assert "has neither a finished model nor a whole snapshot" in no_model.json["error"]["message"]
    assert missing.code == no_run.code == no_model.code == 2


def test_a_snapshot_stands_in_for_the_model_and_tells_when_a_key_came(folder: Path) -> None:
    run = folder / "runs/stopped"
    shutil.copytree(folder / "runs/small", run)
    (run / "snapshots").mkdir()
    (run / "model").rename(run / "snapshots/step-0000000024")
    whole = hetero_here("inspect", str(run), "--json").json
    assert whole["path"].endswith("snapshots/step-0000000024")
    out = folder / "stopped.parquet"
    data = ("--data", str(folder / "held_out.parquet"), "--in-process", "--json")
    ran = hetero_here("predict", str(run / "snapshots/step-0000000024"), "--out", str(out), *data)
    assert ran.code == 0, ran.err + ran.out
    assert pq.read_table(out).equals(predicted(folder))


def test_inspect_shows_model_table_and_key(folder: Path) -> None:
    run = str(folder / "runs/small")
    whole = hetero_here("inspect", run, "--json").json
    rows = {tuple(group["tables"]): group["rows"] for group in whole["groups"]}
    summary = json.loads((folder / "runs/small/summary.json").read_text())
    assert sum(rows.values()) == sum(summary["rows"].values())
    assert (whole["job"], whole["tower"], whole["kind"]) == ("small", "wide_and_deep", "base")
    assert whole["dense"]["mlp.layers.0.weight"][0] == 16
    table = hetero_here("inspect", run, "--table", "deep/item", "--json").json
    assert table["rows"] == summary["rows"]["deep/item"] == sum(table["server_rows"])
    assert sorted(table["features"]) == ["history", "item"]
    assert 0 < table["norms"]["min"] <= table["norms"]["p50"] <= table["norms"]["max"]
    item = pq.read_table(folder / "train.parquet")["item"][0].as_py()
    by_value = hetero_here("inspect", run, "--key", f"item={item}", "--json").json["rows"]
    by_number = hetero_here("inspect", run, "--key", str(item), "--table", "deep/item", "--json").json["rows"]
    assert [row["table"] for row in by_value] == ["wide/item", "deep/item"]
    assert all(row["held"] for row in by_value)
    deep = by_value[1]
    assert by_number == [{**deep, "taken": "the key itself"}]
    assert len(deep["weights"]) == 4
    assert list(deep["state"]) == ["sum_of_mean_squares"]
    assert deep["state"]["sum_of_mean_squares"][0] > 0
    assert deep["came"] == "by step 24"
    shown = hetero_here("inspect", run, "--key", f"item={item}")
    assert "deep/item: held" in shown.out
    assert hetero_here("inspect", run).code == hetero_here("inspect", run, "--table", "deep/item").code == 0


def test_inspect_hashes_values_as_the_job_does_and_says_why_a_key_is_not_there(folder: Path) -> None:
    run = str(folder / "runs/small")
    user = pq.read_table(folder / "train.parquet")["user"][0].as_py()
    known = hetero_here("inspect", run, "--key", f"user={user}", "--json").json["rows"]
    assert [(row["key"], row["held"], row["taken"]) for row in known] == [
        (hash_text(user), True, "hashed, as text")
    ] * 2
    strange = hetero_here("inspect", run, "--key", "user=nobody at all", "--json").json["rows"]
    assert [(row["held"], row["weights"], row["came"]) for row in strange] == [
        (False, None, "never, up to this model")
    ] * 2
    assert "no batch up to step 24 looked it up in deep/user" in strange[1]["why"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--table", "deep/itm"], "the model has no such table; it has wide/user"),
        (["--key", "itm=5"], "the job has no sparse feature 'itm'; it has user, item, tags, history"),
        (["--key", "five"], "is no 64-bit integer; give one, or `feature=value`"),
        (["--key", str(1 << 64)], "is no 64-bit integer"),
        (["--key", "item=five"], "'five' is not a 64-bit integer"),
        (["--key", "item=5", "--table", "deep/user"], "feature 'item' does not use it; it uses wide/item, deep/item"),
    ],
)
def test_inspect_says_what_cannot_be(folder: Path, words: list[str], message: str) -> None:
    ran = hetero_here("inspect", str(folder / "runs/small"), *words, "--json")
    assert (ran.code, message in ran.json["error"]["message"]) == (2, True), ran.out


def test_a_tower_of_another_script_is_named(folder: Path) -> None:
    run = folder / "runs/of_a_script"
    shutil.copytree(folder / "runs/small", run)
    job = (run / "job.resolved.yaml").read_text()
    (run / "job.resolved.yaml").write_text(job.replace("name: wide_and_deep", "name: __main__:NotHere"))
    ran = hetero_here("export", str(run), "--out", str(folder / "of_a_script"), "--json")
    assert (ran.code, "was defined in the script that trained" in ran.json["error"]["message"]) == (2, True), ran.out


def test_export_refuses_a_folder_that_exists(folder: Path, model: ServedModel) -> None:
    ran = hetero_here("export", str(folder / "runs/small"), "--out", str(folder / "exported"), "--json")
    assert (ran.code, "exists, and was not touched" in ran.json["error"]["message"]) == (2, True)
    assert model.spec.job == "small"


def test_inspect_tells_the_server_a_key_had_when_the_model_was_written(folder: Path) -> None:
    """Not the one it would have by the job, whose servers changed their number since."""
    run = folder / "runs/changed"
    words = ("--set", "roles.servers={count: 2, schedule: [{step: 2, count: 3}]}", "--set", "data.test=null", "--json")
    ran = hetero_here("train", str(folder / "job.yaml"), "--run", str(run), "--in-process", *words)
    assert ran.code == 0, ran.err + ran.out
    assert json.loads((run / "summary.json").read_text())["servers"][0]["after"] == 3
    assert hetero_here("inspect", str(run), "--json").json["servers"] == 3
    table = hetero_here("inspect", str(run), "--table", "deep/item", "--json").json
    assert len(table["server_rows"]) == 3
    assert min(table["server_rows"]) > 0
    item = pq.read_table(folder / "train.parquet")["item"][0].as_py()
    for row in hetero_here("inspect", str(run), "--key", f"item={item}", "--json").json["rows"]:
        assert f"server-{row['server']:04d}" in row["file"]
