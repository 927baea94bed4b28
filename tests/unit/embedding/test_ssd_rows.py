"""Rows on SSD against a dictionary: calls of every kind, compaction, crashes in between, limits."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hetero.embedding.ssd.layout import segment_files
from hetero.errors import CapacityError
from hetero.kernels.ssd_records import PAGE
from tests.support.ssd_stores import LAYOUT, WIDTH, hard_keys, new_store, part_of, reopened, rows_for, uses_of

POOL = hard_keys(120)
EVERY = np.arange(len(POOL))
SHARES = st.sampled_from([0.01, 0.1, 0.5, 1.0])
SEEDS = st.integers(0, 2**31)


class StoreMachine(RuleBasedStateMachine):
    """One store and what it must hold.

    held: version of the rows that are here, by place in the pool. written: per row everything that went to disk, in
    order: versions, and None for a tombstone. synced: how many of those are safe. loose: rows taken since their last
    safe record, of which compaction may have left an older one, or none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp())
        self.folders = [self.base / "a", self.base / "b"]
        self.store = new_store(*self.folders)
        self.held: dict[int, int] = {}
        self.written: dict[int, list[int | None]] = {int(at): [] for at in EVERY}
        self.synced: dict[int, int] = {int(at): 0 for at in EVERY}
        self.loose: set[int] = set()
        self.safe_records: dict[str, int] = {}
        self.version = 0

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.base)

    def some(self, share: float, seed: int, *, held: bool | None = None) -> np.ndarray:
        among = [int(at) for at in EVERY if held is None or (int(at) in self.held) == held]
        return np.random.default_rng(seed).permutation(np.array(among, np.int64))[: int(share * len(among))]

    @rule(share=SHARES, seed=SEEDS)
    def append(self, share: float, seed: int) -> None:
        picked = self.some(share, seed, held=False)
        self.version += 1
        keys = part_of(POOL, picked)
        self.store.append(keys, rows_for(len(POOL), version=self.version)[picked], uses_of(keys))
        for at in picked.tolist():
            self.held[at] = self.version
            self.written[at].append(self.version)

    @rule(share=SHARES, seed=SEEDS)
    def read(self, share: float, seed: int) -> None:
        picked = self.some(share, seed)
        read = self.store.read(part_of(POOL, picked))
        self.compare(picked, read.rows, read.uses, read.found)

    @rule(share=SHARES, seed=SEEDS)
    def take(self, share: float, seed: int) -> None:
        picked = self.some(share, seed)
        read = self.store.take(part_of(POOL, picked))
        self.compare(picked, read.rows, read.uses, read.found)
        for at in picked[read.found].tolist():
            del self.held[at]
            self.loose.add(at)

    @rule(share=SHARES, seed=SEEDS)
    def delete(self, share: float, seed: int) -> None:
        picked = self.some(share, seed)
        found = self.store.delete(part_of(POOL, picked))
        np.testing.assert_array_equal(found, [int(at) in self.held for at in picked])
        for at in picked.tolist():
            self.held.pop(at, None)
            self.written[at].append(None)

    @rule()
    def sync(self) -> None:
        self.store.sync()
        self.note_safe()

    @rule()
    def seal(self) -> None:
        """A snapshot's files hold exactly this moment, whatever comes after."""
        with self.store.seal() as hold:
            self.note_safe()
            links = self.base / f"cut-{self.version}-{len(list(self.base.iterdir()))}"
            links.mkdir()
            hold.link_into(links)
            other, told = reopened(self.base / f"of-{links.name}", cut=hold.cut, memory=1)
        assert told.damaged == 0
        other.close()

    @rule(seed=SEEDS)
    def crash(self, seed: int) -> None:
        """Lose the process and any part of what was not synced; then see what the files say."""
        # Compaction syncs by itself, before it deletes a file whose rows it has moved.
        self.safe_records = {segment.path.name: segment.synced for segment in self.store.files}
        self.store.close()
        random = np.random.default_rng(seed)
        for folder in self.folders:
            for path in segment_files(folder):
                self.mutilate(path, random)
        self.store, _ = reopened(*self.folders, memory=random.choice([1, 1 << 20]))
        rows = self.store.read(POOL)
        for at in EVERY.tolist():
            got = int(rows.rows[at, 2]) if rows.found[at] else None
            first = self.synced[at] - 1
            allowed = self.written[at][max(first, 0) :] + ([None] if first < 0 else [])
            if at in self.loose:
                allowed = [None, *self.written[at]]
            assert got in allowed, (at, got, allowed)
            self.written[at] = [got] if rows.found[at] else []
        self.held = {int(at): int(rows.rows[at, 2]) for at in EVERY[rows.found]}
        self.loose = set()
        self.note_safe()

    @invariant()
    def counts(self) -> None:
        use = self.store.use()
        assert use.rows == len(self.held) == int(self.store.files.live.sum())
        assert use.disk_bytes >= use.rows * LAYOUT.record_bytes

    @precondition(lambda self: self.version)
    @rule()
    def scan(self) -> None:
        seen: dict[tuple[int, int], np.ndarray] = {}
        for keys, rows in self.store.scan():
            for table, key, row in zip(keys.tables.tolist(), keys.keys.tolist(), rows, strict=True):
                assert (table, key) not in seen
                seen[table, key] = row
        held = sorted(self.held)
        assert len(seen) == len(held)
        wanted = self.wanted(held)
        for at, row in zip(held, wanted, strict=True):
            got = seen[int(POOL.tables[at]), int(POOL.keys[at])]
            np.testing.assert_array_equal(got.view(np.uint32), row.view(np.uint32))

    def note_safe(self) -> None:
        self.synced = {at: len(events) for at, events in self.written.items()}
        self.loose -= {at for at in self.loose if at in self.held or self.written[at][-1] is None}
        for segment in self.store.files:
            assert segment.synced == segment.records

    def mutilate(self, path: Path, random: np.random.Generator) -> None:
        safe = self.safe_records.get(path.name, 0)
        if not safe:
            what = random.choice(["gone", "cut", "flipped", "whole"])
        else:
            what = random.choice(["cut", "flipped", "whole"])
        whole, rest = divmod(safe, LAYOUT.per_chunk)
        end = PAGE + whole * LAYOUT.chunk_bytes + rest * LAYOUT.record_bytes
        size = path.stat().st_size
        if what == "gone":
            path.unlink()
        elif what == "cut" and size > end:
            os.truncate(path, int(random.integers(end, size + 1)))
        elif what == "flipped" and size > end:
            at = int(random.integers(end, size))
            with path.open("r+b") as file:
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ int(random.integers(1, 256))]))

    def compare(self, picked: np.ndarray, rows: np.ndarray, uses: np.ndarray, found: np.ndarray) -> None:
        np.testing.assert_array_equal(found, [int(at) in self.held for at in picked])
        wanted = self.wanted(picked[found].tolist())
        np.testing.assert_array_equal(rows[found].view(np.uint32), wanted.view(np.uint32))
        np.testing.assert_array_equal(uses[found], uses_of(part_of(POOL, picked[found])))
        assert not rows[~found].any()

    def wanted(self, places: list[int]) -> np.ndarray:
        rows = np.zeros((len(places), WIDTH), np.float32)
        made: dict[int, np.ndarray] = {}
        for row, at in enumerate(places):
            version = self.held[at]
            if version not in made:
                made[version] = rows_for(len(POOL), version=version)
            rows[row] = made[version][at]
        return rows


class LongStoreMachine(StoreMachine):
    """The same, for longer."""


StoreMachine.TestCase.settings = settings(max_examples=5, stateful_step_count=25, deadline=None)
TestAgainstADictionary = StoreMachine.TestCase
LongStoreMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, phases=[Phase.generate]
)
TestAgainstADictionaryForLong = pytest.mark.slow(LongStoreMachine.TestCase)


def test_a_torn_tombstone_stays_torn(tmp_path: Path) -> None:
    """What its file lost was zeros, and zeros are what sealing fills a page with."""
    store = new_store(tmp_path / "store")
    store.delete(part_of(POOL, EVERY[:60]))
    store.sync()
    store.close()
    [path] = segment_files(tmp_path / "store")
    os.truncate(path, PAGE + 59 * LAYOUT.record_bytes + 30)
    store, told = reopened(tmp_path / "store")
    assert (told.damaged, told.named) == (1, (f"{path}: record 59",))
    with store.seal() as hold:
        other, told = reopened(tmp_path / "of", cut=hold.cut)
    assert told.damaged == 0
    other.close()
    store.close()


def test_old_garbage_goes_and_writing_stays_bounded(tmp_path: Path) -> None:
    """Rows taken and appended over and over: files stay within twice the rows, a row is written at most twice."""
    store = new_store(tmp_path)
    store.append(POOL, rows_for(len(POOL), version=0), uses_of(POOL))
    random = np.random.default_rng(0)
    for version in range(1, 120):
        picked = random.permutation(EVERY)[: len(POOL) // 10]
        keys = part_of(POOL, picked)
        store.take(keys)
        store.append(keys, rows_for(len(POOL), version=version)[picked], uses_of(keys))
        store.sync()
    use = store.use()
    assert use.compacted_segments > 10
    assert use.rows == len(POOL)
    assert use.disk_bytes <= 2 * len(POOL) * LAYOUT.record_bytes + 3 * LAYOUT.segment_bytes
    records = store.writer.counts.records * LAYOUT.record_bytes
    assert records / use.row_bytes_written <= 2.0
    store.close()


def test_files_of_a_snapshot_stay_until_it_lets_go(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    store.append(POOL, rows_for(len(POOL), version=1), uses_of(POOL))
    hold = store.seal()
    assert all(part.path.exists() for part in hold.cut.segments)
    store.take(POOL)
    store.append(POOL, rows_for(len(POOL), version=2), uses_of(POOL))
    for _ in range(5):
        store.sync()
        store.tick()
    assert all(part.path.exists() for part in hold.cut.segments)
    assert store.use().held_bytes == sum(part.path.stat().st_size for part in hold.cut.segments)
    other, told = reopened(tmp_path / "other", cut=hold.cut)
    assert told.rows == len(POOL)
    assert (other.read(POOL).rows[:, 2] == 1).all()
    assert (store.read(POOL).rows[:, 2] == 2).all()
    hold.release()
    for _ in range(5):
        store.sync()
        store.tick()
    assert not any(part.path.exists() for part in hold.cut.segments)
    assert store.use().held_bytes == 0
    store.close()
    other.close()


def test_a_deleted_row_stays_deleted_after_compaction_and_recovery(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    gone, kept = part_of(POOL, EVERY[:300]), part_of(POOL, EVERY[300:])
    store.append(POOL, rows_for(len(POOL), version=1), uses_of(POOL))
    store.take(gone)
    assert not store.delete(gone).any()
    for version in range(2, 20):
        store.take(kept)
        store.append(kept, rows_for(len(kept), version=version), uses_of(kept))
        store.sync()
    store.close()
    store, told = reopened(tmp_path)
    assert told.rows == len(kept)
    assert not store.read(gone).found.any()
    store.close()


def test_a_row_that_came_again_outlives_the_compaction_of_its_tombstone(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    old, again = part_of(POOL, EVERY[:204]), part_of(POOL, EVERY[:20])
    store.append(old, rows_for(204, version=1), uses_of(old))  # a segment that stays
    store.delete(again)
    filler = part_of(POOL, EVERY[204:380])
    store.append(filler, rows_for(176, version=1), uses_of(filler))
    store.append(again, rows_for(20, version=2), uses_of(again))
    store.take(filler)
    for _ in range(6):
        store.sync()
        store.compaction._pool.submit(int).result()  # behind its reading
        store.tick()
    assert store.use().compacted_segments == 1
    store.close()
    store, told = reopened(tmp_path)
    assert told.rows == 204
    assert (store.read(again).rows[:, 2] == 2).all()
    store.close()


def test_the_limit_is_kept_by_compaction_and_then_an_error_with_numbers(tmp_path: Path) -> None:
    layout = LAYOUT
    store = new_store(tmp_path, limit=5 * layout.segment_bytes)
    some = part_of(POOL, EVERY[:380])
    store.append(some, rows_for(380, version=0), uses_of(some))
    for version in range(1, 30):
        picked = np.random.default_rng(version).permutation(380)[:90]
        keys = part_of(some, picked)
        store.take(keys)
        store.append(keys, rows_for(380, version=version)[picked], uses_of(keys))
        assert store.use().disk_bytes <= store.files.limit_bytes
    full = new_store(tmp_path / "full", limit=2 * layout.segment_bytes)
    with pytest.raises(CapacityError, match=r"rows on SSD take \d+ bytes and the limit is 24576: .*storage.ssd_bytes"):
        full.append(POOL, rows_for(len(POOL), version=0), uses_of(POOL))
    assert full.use().disk_bytes <= full.files.limit_bytes
    store.close()
    full.close()
