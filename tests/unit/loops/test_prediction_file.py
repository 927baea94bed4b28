"""Predictions on disk: in the input's order whatever order they come in, all of them or no file."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.data.kept import KeptColumns
from hetero.data.sources import list_splits
from hetero.errors import DataError, DeadlineError, HeteroError, ProtocolError
from hetero.loops.handover import Handover
from hetero.loops.predictions import PredictionFile
from hetero.loops.results import ScoredPart
from hetero.records import DataSpec, MalformedRow, Piece, SparseFeature

ROWS, BAD, ROW_GROUP = 50, (3, 17, 18, 40), 8


def write_input(folder: Path) -> DataSpec:
    """Parquet of 50 rows in row groups of 8; rows `BAD` are those that parsing would leave out."""
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": list(range(ROWS))}), folder / "in.parquet", row_group_size=ROW_GROUP)
    features = (SparseFeature(name="id", column="id"),)
    return DataSpec(paths=(str(folder / "in.parquet"),), dense=(), sparse=features, label=None)


def malformed(data: DataSpec) -> list[MalformedRow]:
    path = list_splits(data)[0].path
    return [
        MalformedRow(path=path, split_start=0, line=row % ROW_GROUP, reason="bad", part=row // ROW_GROUP) for row in BAD
    ]


def parts_of(batch: int, towers: int) -> list[ScoredPart]:
    """What the sequencer would cut: the prediction of a row is its id."""
    good = [row for row in range(ROWS) if row not in BAD]
    places = [
        (row // ROW_GROUP, sum(other // ROW_GROUP == row // ROW_GROUP for other in good if other < row)) for row in good
    ]
    parts = []
    for step, start in enumerate(range(0, len(good), batch)):
        rows = list(range(start, min(start + batch, len(good))))
        for tower in range(towers):
            mine = rows[len(rows) * tower // towers : len(rows) * (tower + 1) // towers]
            pieces = [Piece(0, 0, places[i][0], places[i][1], places[i][1] + 1) for i in mine]
            predictions = np.array([good[i] for i in mine], np.float32)
            parts.append(ScoredPart(step=step, tower=tower, pieces=tuple(pieces), predictions=predictions))
    return parts


def opened(folder: Path, data: DataSpec, *, towers: int, columns: tuple[str, ...] = ("id",)) -> PredictionFile:
    kept = KeptColumns(data, columns=columns, label=None)
    return PredictionFile(
        str(folder / "out.parquet"), kept=kept, splits=list_splits(data), towers=towers, rows_per_group=7
    )


@settings(max_examples=30, deadline=None)
@given(batch=st.integers(1, 20), towers=st.integers(1, 3), seed=st.integers(0, 99), handed=st.integers(1, 9))
def test_any_order_of_arrival_gives_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, batch: int, towers: int, seed: int, handed: int
) -> None:
    folder = tmp_path_factory.mktemp("order")
    data = write_input(folder)
    parts = parts_of(batch, towers)
    random.Random(seed).shuffle(parts)
    with opened(folder, data, towers=towers) as file:
        file.note_malformed(malformed(data))
        for start in range(0, len(parts), handed):
            file.add(parts[start : start + handed])
        file.finish()
    table = pq.read_table(folder / "out.parquet")
    wanted = [row for row in range(ROWS) if row not in BAD]
    assert table["id"].to_pylist() == table["prediction"].to_pylist() == wanted
    footer = pq.read_metadata(folder / "out.parquet")
    sizes = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
    assert sizes == [7] * (len(wanted) // 7) + [len(wanted) % 7]
    assert file.rows == len(wanted)
    assert file.prediction_sum == sum(wanted)
    assert sorted(path.name for path in folder.iterdir()) == ["in.parquet", "out.parquet"]


def test_without_columns_the_predictions_stand_alone(tmp_path: Path) -> None:
    data = write_input(tmp_path)
    with opened(tmp_path, data, towers=1, columns=()) as file:
        file.note_malformed(malformed(data))
        file.add(parts_of(16, 1))
        file.finish()
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["prediction"]
    assert table.num_rows == ROWS - len(BAD)


def test_what_is_not_finished_leaves_the_old_file_alone(tmp_path: Path) -> None:
    data = write_input(tmp_path)
    (tmp_path / "out.parquet").write_bytes(b"older")
    with opened(tmp_path, data, towers=1) as file:
        file.note_malformed(malformed(data))
        file.add(parts_of(16, 1))
    assert (tmp_path / "out.parquet").read_bytes() == b"older"
    assert not (tmp_path / "out.parquet.partial").exists()


def test_a_step_that_never_came_is_no_finished_file(tmp_path: Path) -> None:
    data = write_input(tmp_path)
    parts = parts_of(16, 2)
    with opened(tmp_path, data, towers=2) as file:
        file.note_malformed(malformed(data))
        file.add([part for part in parts if (part.step, part.tower) != (1, 1)])
        with pytest.raises(ProtocolError, match="step 1 of tower 1 never came"):
            file.finish()
    assert not (tmp_path / "out.parquet").exists()


def test_an_input_that_changed_is_noticed(tmp_path: Path) -> None:
    data = write_input(tmp_path)
    with opened(tmp_path, data, towers=1) as file:
        file.note_malformed([*malformed(data), *malformed(data)[:1]])
        late = Piece(0, 0, 0, 6, 8)
        with pytest.raises(DataError, match="held at least 8 good rows in one split when it was scored and 7 when"):
            file.add([ScoredPart(step=0, tower=0, pieces=(late,), predictions=np.zeros(2, np.float32))])


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    data = write_input(tmp_path)
    (tmp_path / "out.parquet.partial").mkdir()
    with pytest.raises(HeteroError, match=r"out\.parquet: predictions cannot be written"):
        opened(tmp_path, data, towers=1)


def part(rows: int) -> ScoredPart:
    return ScoredPart(step=0, tower=0, pieces=(), predictions=np.zeros(rows, np.float32))


def test_the_handover_is_bounded_and_names_who_does_not_take() -> None:
    queue = Handover(most_rows=10, taken_within_s=0.01)
    queue.put(part(25))
    with pytest.raises(DeadlineError, match=r"has not taken predictions for 0\.01 s \(25 rows wait, at most 10 may\)"):
        queue.put(part(1))
    assert [len(one.predictions) for one in queue.take()] == [25]
    queue.put(part(4))
    queue.put(part(6))
    assert [len(one.predictions) for one in queue.take()] == [4, 6]
    assert queue.take() == []
