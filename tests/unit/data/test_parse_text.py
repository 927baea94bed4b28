"""CSV and TSV: headers, quotes, byte ranges, compressed files, and bad lines that are told, never dropped."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero.data.hashing import MISSING_KEY
from hetero.errors import DataError
from hetero.records import DataSpec, Format, IdKind, Missing, ParsedSplit
from tests.unit.data.data_files import key_lists, make_spec, read_all, read_one, sparse, write_text

SIMPLE = "label,x,id\n1,0.5,a\n0,,b\n1,-2e1,\n"


def hashed(text: str) -> int:
    return xxhash.xxh64_intdigest(text.encode())


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


def lz4(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="lz4", asbytes=True))


def check_simple(split: ParsedSplit) -> None:
    assert split.labels.tolist() == [1.0, 0.0, 1.0]
    assert split.dense.tolist() == [[0.5], [0.0], [-20.0]]
    assert split.sparse[0].keys.tolist() == [hashed("a"), hashed("b"), MISSING_KEY]
    assert split.malformed == ()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("a.csv", str.encode),
        ("a.CSV", str.encode),
        ("a.tsv", lambda text: text.replace(",", "\t").encode()),
        ("a.csv", lambda text: text.replace("\n", "\r\n").encode()),
        ("a.csv", lambda text: text.rstrip("\n").encode()),
        ("a.csv", lambda text: b"\xef\xbb\xbf" + text.encode()),
        ("a.csv", lambda text: text.replace("\n", "\n\n\r\n").encode()),
        ("a.csv.gz", lambda text: gzip.compress(text.encode())),
        ("a.csv.gz", lambda text: gzip.compress(text[:20].encode()) + gzip.compress(text[20:].encode())),
        ("a.csv.bz2", lambda text: bz2.compress(text.encode())),
        ("a.csv.zst", lambda text: zstd(text.encode())),
        ("a.tsv.lz4", lambda text: lz4(text.replace(",", "\t").encode())),
    ],
)
def test_one_content_in_many_guises(tmp_path: Path, name: str, change: Callable[[str], bytes]) -> None:
    check_simple(read_one(make_spec(write_text(tmp_path, change(SIMPLE), name=name))))


def test_names_instead_of_a_header(tmp_path: Path) -> None:
    path = write_text(tmp_path, SIMPLE.split("\n", 1)[1])
    check_simple(read_one(make_spec(path, columns=("label", "x", "id"))))
    check_simple(read_one(make_spec(path, columns=("label", "x", "id"), format=Format.CSV)))


def test_columns_may_stand_in_any_order_beside_others(tmp_path: Path) -> None:
    path = write_text(tmp_path, 'junk,id,label,"x"\nfoo,a,1,0.5\n"a,b",b,0,\n,,1,-2e1\n')
    check_simple(read_one(make_spec(path)))


cell = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x00"), max_size=6)


@given(rows=st.lists(st.tuples(cell, cell), min_size=1, max_size=6))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_quoted_cells(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(["label", "id", "other"])
    writer.writerows(["1", *row] for row in rows)
    path = write_text(tmp_path, text.getvalue())
    split = read_one(make_spec(path, dense=(), sparse=(sparse("id"), sparse("other"))))
    for feature in range(2):
        expected = [hashed(row[feature]) if row[feature] else MISSING_KEY for row in rows]
        assert split.sparse[feature].keys.tolist() == expected
    assert split.malformed == ()


line = st.one_of(
    st.builds(lambda n, tail: f"{n % 2},{n}{tail}", st.integers(0, 10**6), st.sampled_from(["", "\r"])),
    st.sampled_from(["", "\r", "oops", "1,2,3", "x,4", "9,4"]),
)


@given(
    lines=st.lists(line, min_size=1, max_size=12), block=st.integers(1, 40), ended=st.booleans(), headed=st.booleans()
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_byte_ranges_cover_every_line_once(
    tmp_path: Path, lines: list[str], block: int, ended: bool, headed: bool
) -> None:
    content = ("label,id\n" if headed else "") + "\n".join(lines) + ("\n" if ended else "")
    good, bad = [], []
    for at, text in enumerate(lines, start=2 if headed else 1):
        cells = text.removesuffix("\r").split(",")
        if len(cells) == 2 and cells[0] in ("0", "1"):
            good.append(int(cells[1]))
        elif cells != [""]:
            bad.append(at)
    if not good and not bad:
        return
    path = write_text(tmp_path, content)
    spec = make_spec(
        path,
        dense=(),
        sparse=(sparse("id", ids=IdKind.INTEGER),),
        columns=None if headed else ("label", "id"),
        text_block_bytes=block,
    )
    splits = read_all(spec)
    assert [key for split in splits for key in split.sparse[0].keys.tolist()] == good
    found = []
    for split in splits:
        before = content.encode()[: first_owned_byte(content.encode(), split.ref.start)].count(b"\n")
        found += [before + row.line for row in split.malformed]
        assert all(row.split_start == split.ref.start for row in split.malformed)
    assert found == bad


def first_owned_byte(data: bytes, start: int) -> int:
    """Where the first line begins that begins at `start` or later."""
    if start == 0:
        return 0
    at = data.find(b"\n", start - 1)
    return len(data) if at < 0 else at + 1


def test_bad_lines_are_told_with_line_and_reason(tmp_path: Path) -> None:
    path = write_text(
        tmp_path,
        "label,x,id\n1,1,1\n1,1\n\n1,1,1,1\nyes,1,1\n1,one,1\n1,nan,1\n,1,1\n1,1,2.5\n0,1,2\n",
    )
    split = read_one(make_spec(path, sparse=(sparse("id", ids=IdKind.INTEGER),)))
    assert split.sparse[0].keys.tolist() == [1, 2]
    assert [(row.line, row.reason) for row in split.malformed] == [
        (3, "2 fields where 3 belong"),
        (5, "4 fields where 3 belong"),
        (6, "label 'label': 'yes' is not 0 or 1"),
        (7, "column 'x': 'one' is not a number"),
        (8, "column 'x': 'nan' makes no finite float32"),
        (9, "label 'label' is missing"),
        (10, "column 'id': '2.5' is not a 64-bit integer"),
    ]


def test_an_open_quote_costs_its_own_line_only(tmp_path: Path) -> None:
    path = write_text(tmp_path, 'label,x,id\n1,1,"a\n0,2,b\n1,3,5" pipe\n1,4,"c ""d"""\n0,5,e\n')
    split = read_one(make_spec(path))
    assert split.dense[:, 0].tolist() == [2.0, 3.0, 4.0, 5.0]
    assert split.sparse[0].keys.tolist() == [hashed(text) for text in ("b", '5" pipe', 'c "d"', "e")]
    assert [(row.line, row.reason) for row in split.malformed] == [(2, "a quote is opened and not closed in the line")]


def test_two_open_quotes_that_would_swallow_a_line(tmp_path: Path) -> None:
    path = write_text(tmp_path, 'label,x,id\n1,1,"a\n0,2,b\n1,"3,c\n0,4,d\n')
    split = read_one(make_spec(path))
    assert split.dense[:, 0].tolist() == [2.0, 4.0]
    assert [row.line for row in split.malformed] == [2, 4]


def test_a_stray_carriage_return_is_told(tmp_path: Path) -> None:
    path = write_text(tmp_path, b"label,x,id\r\n1,1,a\r\n1,2,b\r0,3,c\r\n0,4,d\r\n")
    split = read_one(make_spec(path))
    assert split.dense[:, 0].tolist() == [1.0, 4.0]
    assert [(row.line, row.reason) for row in split.malformed] == [(3, "a carriage return stands inside the line")]


def test_lines_longer_than_a_piece_and_bad_lines_far_inside(tmp_path: Path) -> None:
    rows = [f"1,{i},{'y' * 100}" for i in range(30_000)]
    rows[25_000] = "1,2"
    rows[10] = "1,3," + "z" * (2 << 20)
    path = write_text(tmp_path, "label,x,id\n" + "\n".join(rows))
    split = read_one(make_spec(path))
    assert split.rows == 29_999
    assert [(row.line, row.reason) for row in split.malformed] == [(25_002, "2 fields where 3 belong")]
    assert split.sparse[0].keys[10] == hashed("z" * (2 << 20))


def test_blocks_of_a_large_compressed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetero.data.lines.BLOCK_BYTES", 64)
    tags = ["", "a", "a|b"]
    rows = [f"{i % 2},{i},{i if i % 5 else ''},{tags[i % 3]}" for i in range(100)]
    rows[41] = "broken"
    path = write_text(tmp_path, gzip.compress(("label,x,id,tags\n" + "\n".join(rows)).encode()), name="a.csv.gz")
    features = (
        sparse("id", ids=IdKind.INTEGER),
        sparse("id", ids=IdKind.INTEGER, missing=Missing.SKIP),
        sparse("tags", is_list=True),
    )
    split = read_one(make_spec(path, sparse=features))
    kept = [i for i in range(100) if i != 41]
    assert split.dense[:, 0].tolist() == [float(i) for i in kept]
    assert key_lists(split, 0) == [[i] if i % 5 else [MISSING_KEY] for i in kept]
    assert key_lists(split, 1) == [[i] if i % 5 else [] for i in kept]
    assert key_lists(split, 2) == [[hashed(tag) for tag in tags[i % 3].split("|") if tag] for i in kept]
    assert [(row.line, row.reason) for row in split.malformed] == [(43, "1 fields where 4 belong")]


def test_integers_numbers_and_lists_in_text(tmp_path: Path) -> None:
    path = write_text(tmp_path, "label,id,tags,age\n1,18446744073709551615,a|b|c,17\n0,-1,,18\n1,,||b,\n", name="a.csv")
    features = (
        sparse("id", ids=IdKind.INTEGER),
        sparse("id"),
        sparse("tags", is_list=True, max_length=2),
        sparse("age", boundaries=(18.0,), missing=Missing.SKIP),
    )
    split = read_one(make_spec(path, dense=(), sparse=features))
    assert key_lists(split, 0) == [[2**64 - 1], [2**64 - 1], [MISSING_KEY]]
    assert key_lists(split, 1) == [[hashed("18446744073709551615")], [hashed("-1")], [MISSING_KEY]]
    assert key_lists(split, 2) == [[hashed("b"), hashed("c")], [], [hashed("b")]]
    assert key_lists(split, 3) == [[0], [1], []]


def test_lists_of_integers_with_another_separator(tmp_path: Path) -> None:
    path = write_text(tmp_path, "label,tags\n1,1 2\n0,3 x y\n1,\n1,z 9\n1,5\n")
    feature = sparse("tags", is_list=True, ids=IdKind.INTEGER, separator=" ")
    split = read_one(make_spec(path, dense=(), sparse=(feature,)))
    assert key_lists(split) == [[1, 2], [], [5]]
    assert [(row.line, row.reason) for row in split.malformed] == [
        (3, "column 'tags': 'x' is not a 64-bit integer"),
        (5, "column 'tags': 'z' is not a 64-bit integer"),
    ]


def criteo_spec(path: Path) -> DataSpec:
    return make_spec(path, format=Format.CRITEO, sparse=(sparse("C1"), sparse("C26")), dense=())


@pytest.mark.parametrize("name", ["day.tsv", "day.txt", "day.gz", "day"])
def test_criteo_rows(tmp_path: Path, name: str) -> None:
    rows = [
        ["1", *(str(i) for i in range(13)), *(f"{i:08x}" for i in range(26))],
        ["0", "-2", *[""] * 12, 'a"b', *[""] * 25],
    ]
    data = "".join("\t".join(row) + "\n" for row in rows).encode()
    path = write_text(tmp_path, gzip.compress(data) if name.endswith(".gz") else data, name=name)
    split = read_one(criteo_spec(path))
    assert split.labels.tolist() == [1.0, 0.0]
    assert key_lists(split, 0) == [[hashed("00000000")], [hashed('a"b')]]
    assert key_lists(split, 1) == [[hashed("00000019")], [MISSING_KEY]]


def test_criteo_rows_without_label_are_malformed(tmp_path: Path) -> None:
    path = write_text(tmp_path, "\t".join(["1"] * 39) + "\n", name="test.txt")
    split = read_one(criteo_spec(path))
    assert [row.reason for row in split.malformed] == ["39 fields where 40 belong"]


def test_bytes_that_are_not_utf8_are_hashed_as_they_are(tmp_path: Path) -> None:
    path = write_text(tmp_path, b"label,x,id\n1,1,caf\xe9\n")
    assert read_one(make_spec(path)).sparse[0].keys.tolist() == [xxhash.xxh64_intdigest(b"caf\xe9")]


def test_a_line_break_in_a_quoted_cell_is_never_silent(tmp_path: Path) -> None:
    path = write_text(tmp_path, 'label,x,id\n1,1,"a\nb"\n0,2,c\n')
    split = read_one(make_spec(path))
    assert split.dense[:, 0].tolist() == [2.0]
    assert [row.line for row in split.malformed] == [2, 3]


def test_a_line_break_that_cannot_be_placed_fails(tmp_path: Path) -> None:
    path = write_text(tmp_path, 'label,x,id\n1,1,a"b,"a\nb"\n0,2,"c\n', name="a.csv")
    with pytest.raises(DataError, match="line break"):
        read_all(make_spec(path, columns=None, sparse=(sparse("id"),)))


def test_float_text_equals_the_same_values_in_parquet(tmp_path: Path) -> None:
    values = np.random.default_rng(5).standard_normal(500) * 1e3
    path = write_text(tmp_path, "label,x,id\n" + "".join(f"0,{value!r},1\n" for value in values.tolist()))
    assert (read_one(make_spec(path)).dense[:, 0] == values.astype(np.float32)).all()
