"""Exported tables: every key is found, no other is, and files that do not fit are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import DataError
from hetero.kernels.mix import mix64_reference
from hetero.kernels.slots import find_in_slots, find_in_slots_reference, slot_bits, slot_counts
from hetero.records import U64
from hetero.serving.layout import KEYS, STARTS, VALUES, ServedTable
from hetero.serving.table import MappedTable

SEED = 0x1234_5678_9ABC_DEF0
ids = st.one_of(st.integers(0, 40), st.integers(0, (1 << 64) - 1))


def in_slots(keys: U64, bits: int) -> tuple[U64, np.ndarray]:
    mixed_seed = mix64_reference(np.array([SEED], np.uint64))[0]
    ordered = keys[np.argsort(mix64_reference(keys ^ mixed_seed))]
    counts = slot_counts(ordered, mixed_seed=int(mixed_seed), bits=bits)
    return ordered, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


@settings(max_examples=100, deadline=None)
@given(held=st.lists(ids, max_size=60, unique=True), wanted=st.lists(ids, max_size=60), bits=st.integers(1, 8))
def test_lookups_find_what_plain_python_finds(held: list[int], wanted: list[int], bits: int) -> None:
    keys, starts = in_slots(np.array(held, np.uint64), bits)
    asked, found = np.array(wanted, np.uint64), np.empty(len(wanted), np.int64)
    mixed_seed = mix64_reference(np.array([SEED], np.uint64))[0]
    keys.flags.writeable = starts.flags.writeable = False
    find_in_slots(keys, starts, np.uint64(64 - bits), mixed_seed, asked, found)
    np.testing.assert_array_equal(found, find_in_slots_reference(keys, asked))


def test_slots_hold_a_few_rows_each() -> None:
    for rows in (0, 1, 7, 8, 1000, 10**6, 10**9):
        per_slot = rows / (1 << slot_bits(rows))
        assert per_slot <= 8
        assert per_slot >= 4 or rows < 16


def written(folder: Path, held: list[int], *, dim: int = 3, default: float = 0.0) -> ServedTable:
    bits = slot_bits(len(held))
    keys, starts = in_slots(np.array(held, np.uint64), bits)
    values = np.arange(len(held) * dim, dtype=np.float32).reshape(-1, dim)
    (folder / "t").mkdir()
    for name, array in ((KEYS, keys), (VALUES, values), (STARTS, starts)):
        np.save(folder / "t" / name, array)
    return ServedTable(
        name="t",
        index=0,
        group=0,
        dim=dim,
        seed=SEED,
        rows=len(held),
        slot_bits=bits,
        folder="t",
        default=default,
    )


def test_keys_never_seen_read_the_default(tmp_path: Path) -> None:
    spec = written(tmp_path, [5, 7, (1 << 64) - 1], default=0.25)
    table = MappedTable(spec, folder=tmp_path)
    keys = np.load(tmp_path / "t" / KEYS)
    got = table.lookup(np.array([7, 6, (1 << 64) - 1], np.uint64))
    place = {int(key): position for position, key in enumerate(keys)}
    values = np.load(tmp_path / "t" / VALUES)
    np.testing.assert_array_equal(got, [values[place[7]], [0.25] * 3, values[place[(1 << 64) - 1]]])


def test_a_table_without_rows_reads_defaults(tmp_path: Path) -> None:
    table = MappedTable(written(tmp_path, []), folder=tmp_path)
    np.testing.assert_array_equal(table.lookup(np.array([1, 2], np.uint64)), np.zeros((2, 3), np.float32))


def test_arrays_that_do_not_fit_the_manifest_are_refused(tmp_path: Path) -> None:
    spec = written(tmp_path, [1, 2, 3])
    with pytest.raises(DataError, match=r"keys\.npy: holds uint64 \(3,\), the manifest says uint64 \(4,\)"):
        MappedTable(replace(spec, rows=4), folder=tmp_path)
    (tmp_path / "t" / VALUES).write_bytes(b"no array")
    with pytest.raises(DataError, match=r"values\.npy: cannot be mapped"):
        MappedTable(spec, folder=tmp_path)
