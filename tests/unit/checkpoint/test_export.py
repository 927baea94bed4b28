"""From snapshot to exported model: the same scores without Ray and without the training code, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hetero.checkpoint.export import export_model
from hetero.checkpoint.scan import find_row, scan_rows
from hetero.errors import DataError, UserError
from hetero.kernels.mix import mix64_reference
from hetero.records import TowerSpec
from hetero.serving.layout import MANIFEST
from hetero.serving.model import Checks, ServedModel
from tests.support.served import Trained, train_and_score

DIN = {"pairs": [["item", "history"]], "hidden": [16], "attention_hidden": [8]}
TOWERS: Mapping[str, dict[str, object]] = {
    "fm": {},
    "wide_and_deep": {"hidden": [16, 8]},
    "deepfm": {"hidden": [16]},
    "dlrm": {"bottom": [16], "top": [16]},
    "dcn_v2": {"hidden": [16]},
    "din": DIN,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train_and_score(tmp_path_factory.mktemp("din"), tower=TowerSpec(name="din", args=DIN, lr=0.01))


@pytest.fixture(scope="module")
def exported(trained: Trained) -> Path:
    """Written in parts of a few rows, so that a table's rows come from many ranges of buckets."""
    folder = trained.test.parent / "exported"
    export_model(trained.module(), trained.job, trained.snapshot, folder=folder, part_bytes=2000)
    return folder


def test_a_scan_in_parts_holds_every_row_once_in_the_order_of_the_mix(trained: Trained) -> None:
    whole: dict[tuple[int, int], bytes] = {}
    parts: dict[tuple[int, int], bytes] = {}
    for part_bytes, rows in ((1 << 30, whole), (1000, parts)):
        for part in scan_rows(trained.snapshot, trained.job, part_bytes=part_bytes):
            for table, key, row in zip(part.keys.tables, part.keys.keys, part.rows, strict=True):
                assert (int(table), int(key)) not in rows
                rows[(int(table), int(key))] = row.tobytes()
    assert whole == parts
    assert len(whole) == sum(trained.snapshot.manifest.held)


def test_one_row_is_found_where_the_scan_has_it(trained: Trained) -> None:
    part = next(part for part in scan_rows(trained.snapshot, trained.job) if part.group == 1)
    for at in (0, len(part.keys) - 1):
        found = find_row(trained.snapshot, trained.job, table=int(part.keys.tables[at]), key=int(part.keys.keys[at]))
        assert found.row is not None
        assert found.file is not None
        np.testing.assert_array_equal(found.row.rows[0], part.rows[at])
    unseen = find_row(trained.snapshot, trained.job, table=3, key=10**15)
    assert (unseen.row, unseen.file, unseen.deleted) == (None, None, False)
    with pytest.raises(DataError, match="the job has no table number 9"):
        find_row(trained.snapshot, trained.job, table=9, key=1)


def test_the_exported_tables_are_parquet_and_arrays_of_the_same_rows(trained: Trained, exported: Path) -> None:
    spec = ServedModel.open(exported).spec
    assert sum(table.rows for table in spec.tables) == sum(trained.snapshot.manifest.held)
    for table in spec.tables:
        rows = pq.read_table(exported / table.folder / "rows.parquet")
        keys = np.load(exported / table.folder / "keys.npy")
        np.testing.assert_array_equal(rows["key"].to_numpy(), keys)
        values = np.array(rows["row"].combine_chunks().flatten()).reshape(-1, table.dim)
        np.testing.assert_array_equal(values, np.load(exported / table.folder / "values.npy"))
        mixed = mix64_reference(keys ^ mix64_reference(np.array([table.seed], np.uint64)))
        assert (np.diff(mixed.astype(np.float64)) >= 0).all()


def test_scores_are_the_trainers(trained: Trained, exported: Path) -> None:
    model = ServedModel.open(exported)
    rows = pq.read_table(trained.test)
    scored = model.score(rows)
    assert not scored.malformed
    np.testing.assert_allclose(scored.predictions, trained.scores, rtol=0, atol=1e-6)
    by_file = np.concatenate([part.predictions for part in model.score_files([str(trained.test)])])
    np.testing.assert_allclose(by_file, trained.scores, rtol=0, atol=1e-6)
    one_by_one = [model.score(rows.slice(at, 1)).predictions[0] for at in range(rows.num_rows - 6, rows.num_rows)]
    np.testing.assert_allclose(one_by_one, trained.scores[-6:], rtol=0, atol=1e-6)
    assert len(model.score(rows.slice(0, 0)).predictions) == 0


@pytest.mark.slow
@pytest.mark.parametrize("tower", TOWERS)
def test_every_built_in_tower_scores_as_the_trainer_did(tmp_path: Path, tower: str) -> None:
    trained = train_and_score(tmp_path, tower=TowerSpec(name=tower, args=TOWERS[tower], lr=0.01))
    export_model(trained.module(), trained.job, trained.snapshot, folder=tmp_path / "exported")
    scored = ServedModel.open(tmp_path / "exported").score(pq.read_table(trained.test))
    np.testing.assert_allclose(scored.predictions, trained.scores, rtol=0, atol=1e-6)
    assert np.ptp(trained.scores) > 0.05


def test_a_row_that_cannot_be_used_has_no_score_and_a_reason(exported: Path, trained: Trained) -> None:
    rows = pq.read_table(trained.test).slice(0, 3)
    x = pa.array([0.5, float("inf"), 0.5])
    scored = ServedModel.open(exported).score(rows.set_column(rows.column_names.index("x"), "x", x))
    np.testing.assert_array_equal(np.isnan(scored.predictions), [False, True, False])
    assert [(row.line, row.reason) for row in scored.malformed] == [(1, "column 'x': inf makes no finite float32")]
    with pytest.raises(DataError, match="no column 'user'"):
        ServedModel.open(exported).score(rows.drop_columns(["user"]))


def test_an_export_is_there_whole_or_not_at_all(trained: Trained, exported: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="exists, and was not touched"):
        export_model(trained.module(), trained.job, trained.snapshot, folder=exported)
    damaged = Path(trained.snapshot.file(trained.snapshot.manifest.files[-1].file))
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    try:
        with pytest.raises(DataError, match="was changed or damaged"):
            export_model(trained.module(), trained.job, trained.snapshot, folder=tmp_path / "new")
    finally:
        damaged.write_bytes(data)
    assert not any(tmp_path.iterdir())


def test_a_folder_that_is_no_whole_export_is_refused(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no exported model is here"):
        ServedModel.open(tmp_path)
    record = json.loads((exported / MANIFEST).read_text())
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / MANIFEST).write_text(json.dumps({**record, "format": 99}))
    with pytest.raises(DataError, match=r"no manifest of an exported model of format 1 \(it says 99\)"):
        ServedModel.open(copy)
    (copy / MANIFEST).write_text(json.dumps({**record, "tables": [{"name": "x"}]}))
    with pytest.raises(DataError, match="lacks what a manifest of format 1 holds"):
        ServedModel.open(copy)
    (copy / MANIFEST).write_text(json.dumps(record))
    with pytest.raises(DataError, match=r"is missing, the manifest lists it"):
        ServedModel.open(copy)


def test_damaged_rows_are_found_when_everything_is_checked(exported: Path) -> None:
    values = next(iter(sorted((exported / "tables").glob("*deep-item/values.npy"))))
    data = values.read_bytes()
    ServedModel.open(exported, checks=Checks.ALL)
    try:
        values.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        ServedModel.open(exported)
        with pytest.raises(DataError, match=r"values\.npy: was changed or damaged"):
            ServedModel.open(exported, checks=Checks.ALL)
    finally:
        values.write_bytes(data)


def test_a_damaged_tower_is_refused(exported: Path) -> None:
    tower = exported / "tower.pt2"
    data = tower.read_bytes()
    try:
        tower.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(DataError, match=r"tower\.pt2: was changed or damaged"):
            ServedModel.open(exported)
        tower.write_bytes(data[:-1])
        with pytest.raises(DataError, match=rf"has {len(data) - 1} bytes, the manifest says {len(data)}"):
            ServedModel.open(exported)
    finally:
        tower.write_bytes(data)
