"""Damaged files of rows on SSD are named, and directories are guarded."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from hetero.embedding.ssd.layout import Layout, segment_files
from hetero.errors import CapacityError, DataError, HeteroError, UserError
from hetero.kernels.ssd_records import PAGE
from hetero.records import DiskIo
from tests.support.ssd_stores import LAYOUT, WIDTH, hard_keys, new_store, part_of, reopened, rows_for, uses_of

POOL = hard_keys(120)
EVERY = np.arange(len(POOL))


def test_a_damaged_record_is_named_when_it_is_read(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    keys = part_of(POOL, EVERY[:300])
    store.append(keys, rows_for(300, version=1), uses_of(keys))
    store.seal().release()
    path = segment_files(tmp_path)[0]
    flip(path, PAGE + 5 * LAYOUT.record_bytes + 30)
    with pytest.raises(DataError, match=rf"{path}: record 5 of 204 is damaged"):
        store.read(keys)
    with pytest.raises(DataError, match="1 records with rows are damaged"):
        list(store.scan())
    os.truncate(path, PAGE + LAYOUT.chunk_bytes)
    with pytest.raises(HeteroError, match=r"record 102 of 204 cannot be read"):
        store.read(part_of(keys, EVERY[102:103]))
    store.close()


def test_compaction_stops_at_a_damaged_row(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    keys = part_of(POOL, EVERY[:204])
    store.append(keys, rows_for(204, version=1), uses_of(keys))
    store.seal().release()
    flip(segment_files(tmp_path)[0], PAGE + 200)

    def take_most() -> None:
        for start in range(10, 200, 10):
            store.take(part_of(keys, EVERY[start : start + 10]))
            store.compaction._pool.submit(int).result()  # behind its reading
        store.tick()

    with pytest.raises(DataError, match="1 records with rows are damaged"):
        take_most()
    store.close()


def test_recovery_names_what_is_torn_and_refuses_a_damaged_cut(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    keys = part_of(POOL, EVERY[:250])
    store.append(keys, rows_for(250, version=1), uses_of(keys))
    cut = store.seal().cut
    store.close()
    first, last = segment_files(tmp_path / "store")
    flip(first, PAGE + 7)
    os.truncate(last, PAGE + 45 * LAYOUT.record_bytes + 20)
    with pytest.raises(DataError, match=r"2 records of the cut are damaged: .*record 0, .*record 45"):
        reopened(tmp_path / "store", cut=cut)
    store, told = reopened(tmp_path / "store")
    assert (told.rows, told.damaged) == (248, 2)
    assert told.named == (f"{first}: record 0", f"{last}: record 45")
    store.close()
    first.unlink()
    with pytest.raises(DataError, match=r"segment-0000000000.rows: a segment of the cut is missing"):
        reopened(tmp_path / "store", cut=cut)


def test_directories_are_guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store(tmp_path)
    with pytest.raises(UserError, match="is in use by another server"):
        new_store(tmp_path)
    keys = part_of(POOL, EVERY[:5])
    store.append(keys, rows_for(5, version=1), uses_of(keys))
    store.sync()
    store.close()
    with pytest.raises(DataError, match="is left of another run"):
        new_store(tmp_path)
    with pytest.raises(DataError, match="is of another store"):
        reopened(tmp_path, layout=Layout(width=WIDTH, identity=98, chunk_bytes=4096, chunks=2))
    path = segment_files(tmp_path)[0]
    flip(path, 3)
    with pytest.raises(DataError, match="the header is damaged"):
        reopened(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be used"):
        new_store(tmp_path / "file")
    other = new_store(tmp_path / "other")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(CapacityError, match=r"no room for 12288 more bytes of rows, \d+ are free"):
        other.append(keys, rows_for(5, version=1), uses_of(keys))
    other.close()


def test_direct_io_is_used_and_a_file_system_without_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open
    asked: list[int] = []

    def noting(path: object, flags: int, *rest: int, refuse: bool = False) -> int:
        asked.append(flags & os.O_DIRECT)
        if refuse and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags & ~os.O_DIRECT, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", noting)
    store = new_store(tmp_path / "direct", io=DiskIo.DIRECT)
    store.append(POOL, rows_for(len(POOL), version=1), uses_of(POOL))
    assert os.O_DIRECT in asked
    assert store.read(POOL).found.all()
    store.close()
    monkeypatch.setattr(os, "open", lambda *given: noting(*given, refuse=True))
    store = new_store(tmp_path / "other", io=DiskIo.DIRECT)
    with pytest.raises(UserError, match=r"does not do direct IO.*storage\.io"):
        store.append(POOL, rows_for(len(POOL), version=1), uses_of(POOL))
    store.close()


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))
