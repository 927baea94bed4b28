"""Rows in two tiers against a dictionary, bit for bit: every call, leases, snapshots and crashes in between."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hetero.embedding.answers import Create
from hetero.embedding.lease_table import LeaseTable
from hetero.embedding.ssd.layout import Layout
from hetero.embedding.ssd.recovery import recover
from hetero.embedding.ssd.references import Hold
from hetero.embedding.ssd.rows import SsdRows, buffer_bytes
from hetero.embedding.tiered import TieredStore
from hetero.embedding.tiered_cut import TieredCut
from hetero.errors import CapacityError, LeaseError, ProtocolError
from hetero.kernels.mix import mix64_reference
from hetero.keys.routing import mixed_seeds
from hetero.records import (
    F32,
    DiskIo,
    GroupSpec,
    Initializer,
    InitSpec,
    KeySet,
    RowOptimizer,
    RowOptimizerSpec,
    TableSpec,
)
from tests.support.crafted_keys import colliding_hashes, keys_with_hashes
from tests.support.row_oracle import RowOracle, pairs
from tests.support.row_updates import assert_same_bits

GROUP = GroupSpec(
    dim=16,
    optimizer=RowOptimizerSpec(kind=RowOptimizer.ADAGRAD),
    init=InitSpec(kind=Initializer.UNIFORM, scale=0.1),
    tables=(TableSpec(index=0, name="a", seed=5), TableSpec(index=2, name="b", seed=2**64 - 1)),
)
SEEDS = mixed_seeds([GROUP])
SHIFT = np.uint64(52)
WIDTH = 32
LAYOUT = Layout(width=WIDTH, identity=1, chunk_bytes=8192, chunks=2, read_bytes=8192)
RESIDENT = 100


def a_pool() -> KeySet:
    """Keys of both tables, three times what memory holds; some share all that an index knows of them."""
    tables, keys = [], []
    for table in GROUP.tables:
        own = np.concatenate(
            [keys_with_hashes(colliding_hashes(8), seed=table.seed), mix64_reference(np.arange(200, dtype=np.uint64))]
        )
        tables.append(np.full(len(own), table.index, np.uint16))
        keys.append(own)
    return KeySet(np.concatenate(tables), np.concatenate(keys))


POOL = a_pool()


def tiered(folder: Path, *, rows: int = RESIDENT, ssd: SsdRows | None = None) -> TieredStore:
    """A store with memory for about so many rows."""
    if ssd is None:
        ssd = SsdRows(
            LAYOUT, folders=[folder], seeds=SEEDS, shift=SHIFT, limit_bytes=1 << 24, io=DiskIo.CACHED, threads=2
        )
    # What stands beside the rows: buffers, pages that are not full, an index on SSD, leases of all rows.
    leases = LeaseTable(seeds=SEEDS, shift=SHIFT).memory_bytes + 20 * len(POOL)
    beside = buffer_bytes(LAYOUT) + 64 * 3 * 4096 + ssd.index.memory_bytes + leases
    budget = int((beside + rows * (4 * WIDTH + 20.5)) / (1 - 4 / 64))
    return TieredStore(GROUP, ssd=ssd, seeds=SEEDS, shift=SHIFT, memory_bytes=budget)


class TieredMachine(RuleBasedStateMachine):
    """oracle: rows in no lease. leased: rows with a tower, by identity: (holder, values)."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp())
        self.runs = 0
        self.store = tiered(self.base / "run-0")
        self.oracle = RowOracle(GROUP)
        self.leased: dict[tuple[int, int], tuple[int, F32]] = {}
        self.open_cut: tuple[TieredCut, dict[tuple[int, int], F32]] | None = None
        self.snapshot: tuple[Hold, list[tuple[KeySet, F32]], dict[tuple[int, int], F32]] | None = None

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.base)

    def some(self, share: float, seed: int, *, free: bool = True) -> KeySet:
        picked = np.random.default_rng(seed).permutation(len(POOL))[: int(share * len(POOL))]
        keys = KeySet(POOL.tables[picked], POOL.keys[picked])
        own = np.array([(pair not in self.leased) == free for pair in pairs(keys)], np.bool_)
        return keys[own]

    shares = st.sampled_from([0.01, 0.1, 0.3, 1.0])
    seeds = st.integers(0, 2**31)

    @rule(share=shares, seed=seeds, create=st.sampled_from(Create))
    def pull(self, share: float, seed: int, create: Create) -> None:
        keys = self.some(share, seed)
        assert_same_bits(self.store.pull(keys, create=create), self.oracle.pull(keys, create=create))

    @rule(share=shares, seed=seeds)
    def push(self, share: float, seed: int) -> None:
        keys = self.some(share, seed)
        gradients = np.random.default_rng(seed).normal(size=(len(keys), GROUP.dim)).astype(np.float32)
        gradients[::13] = np.nan
        report = self.store.push(keys, gradients)
        assert report == self.oracle.push(keys, gradients)
        np.testing.assert_array_equal(report.rejected_at, np.arange(len(keys))[::13])

    @rule(share=shares, seed=seeds)
    def read(self, share: float, seed: int) -> None:
        keys = self.some(share, seed)
        got, want = self.store.read_rows(keys), self.oracle.read_rows(keys)
        np.testing.assert_array_equal(got.found, want.found)
        assert_same_bits(got.rows, want.rows)

    @rule(share=shares, seed=seeds)
    def write(self, share: float, seed: int) -> None:
        keys = self.some(share, seed)
        rows = np.random.default_rng(seed).normal(size=(len(keys), WIDTH)).astype(np.float32)
        self.store.write_rows(keys, rows)
        self.oracle.write_rows(keys, rows)

    @rule(share=shares, seed=seeds, holder=st.sampled_from([1, 2]))
    def lease(self, share: float, seed: int, holder: int) -> None:
        keys = self.some(share, seed)
        rows = self.store.lease(keys, holder=holder)
        self.oracle.pull(keys, create=Create.YES)
        assert_same_bits(rows, self.oracle.read_rows(keys).rows)
        for pair, row in zip(pairs(keys), rows, strict=True):
            self.leased[pair] = (holder, row)
            del self.oracle.rows[pair]

    @rule(share=shares, seed=seeds)
    def refuse(self, share: float, seed: int) -> None:
        """No call touches a leased row, or takes one back from somebody else."""
        keys = self.some(share, seed, free=False)
        if not len(keys):
            return
        for call in (
            lambda: self.store.pull(keys, create=Create.YES),
            lambda: self.store.push(keys, np.ones((len(keys), GROUP.dim), np.float32)),
            lambda: self.store.lease(keys, holder=3),
            lambda: self.store.give_back(keys, np.ones((len(keys), WIDTH), np.float32), holder=3),
        ):
            with pytest.raises(LeaseError, match=r"key \d+ of table [ab] is held by tower [01]"):
                call()

    @rule(share=shares, seed=seeds, holder=st.sampled_from([1, 2]))
    def give_back(self, share: float, seed: int, holder: int) -> None:
        keys = self.some(share, seed, free=False)
        own = np.array([self.leased[pair][0] == holder for pair in pairs(keys)], np.bool_)
        keys = keys[own]
        rows = np.random.default_rng(seed).normal(size=(len(keys), WIDTH)).astype(np.float32)
        self.store.give_back(keys, rows, holder=holder)
        self.oracle.write_rows(keys, rows)
        for pair in pairs(keys):
            del self.leased[pair]

    @rule()
    def save(self) -> None:
        """Files on SSD are sealed; rows in memory and those of the towers are copied."""
        if self.snapshot is not None:
            self.snapshot[0].release()
        hold = self.store.seal()
        everything = dict(self.oracle.rows) | {pair: row for pair, (_, row) in self.leased.items()}
        copied = [(keys, rows.copy()) for keys, rows in self.store.scan_memory()]
        if self.leased:
            keys = KeySet(
                np.array([table for table, _ in self.leased], np.uint16),
                np.array([key for _, key in self.leased], np.uint64),
            )
            copied.append((keys, np.array([row for _, row in self.leased.values()], np.float32)))
        self.snapshot = (hold, copied, everything)

    @rule()
    def crash_and_restore(self) -> None:
        """The server dies at any moment; another one starts from the last snapshot's files and copies."""
        if self.snapshot is None:
            return
        hold, copied, everything = self.snapshot
        self.store.close()
        self.open_cut = None
        self.runs += 1
        ssd, _ = recover(
            LAYOUT,
            folders=[self.base / f"run-{self.runs}"],
            seeds=SEEDS,
            shift=SHIFT,
            limit_bytes=1 << 24,
            cut=hold.cut,
            io=DiskIo.CACHED,
            threads=2,
        )
        self.store = tiered(self.base, ssd=ssd)
        for keys, rows in copied:
            self.store.write_rows(keys, rows)
        self.oracle.rows = dict(everything)
        self.leased, self.snapshot = {}, None

    @rule()
    def cut(self) -> None:
        """A snapshot as servers take it: towers tell what they hold, and later calls change nothing in it."""
        if self.open_cut is not None:
            self.open_cut[0].close()
        for holder in (1, 2):
            mine = {pair: row for pair, (who, row) in self.leased.items() if who == holder}
            if mine:
                tables, keys = zip(*mine, strict=True)
                told = KeySet(np.array(tables, np.uint16), np.array(keys, np.uint64))
                self.store.note_leased(told, np.array(list(mine.values())), holder=holder)
        everything = dict(self.oracle.rows) | {pair: row for pair, (_, row) in self.leased.items()}
        self.open_cut = (self.store.begin_snapshot(), everything)
        assert self.open_cut[0].held == len(everything)

    @rule()
    def read_cut(self) -> None:
        if self.open_cut is None:
            return
        cut, everything = self.open_cut
        seen: dict[tuple[int, int], F32] = {}
        for chunk in cut.chunks():
            for pair, row in zip(pairs(chunk.keys), chunk.rows, strict=True):
                assert pair not in seen
                seen[pair] = row
        cut.close()
        self.open_cut = None
        assert seen.keys() == everything.keys()
        for pair, row in seen.items():
            assert_same_bits(row, everything[pair])

    @rule(share=shares, seed=seeds)
    def delete(self, share: float, seed: int) -> None:
        keys = self.some(share, seed)
        there = [pair for pair in pairs(keys) if pair in self.oracle.rows]
        assert self.store.delete_rows(keys) == len(there)
        for pair in there:
            del self.oracle.rows[pair]

    @rule()
    def scan(self) -> None:
        seen = {pair: row for keys, rows in self.store.scan() for pair, row in zip(pairs(keys), rows, strict=True)}
        assert seen.keys() == self.oracle.rows.keys()
        for pair, row in seen.items():
            assert_same_bits(row, self.oracle.rows[pair])

    @invariant()
    def every_row_is_in_one_place(self) -> None:
        use = self.store.use()
        assert use.memory_rows + use.ssd.rows == len(self.oracle.rows)
        assert use.leased_rows == len(self.leased)
        assert use.memory_bytes <= use.budget_bytes
        assert use.memory_rows <= RESIDENT + 60
        counts = self.oracle.count_by_table()
        for table, name in ((0, "a"), (2, "b")):
            counts[name] += sum(pair[0] == table for pair in self.leased)
        assert self.store.count_by_table() == counts
        assert self.store.count() == sum(counts.values())


class LongTieredMachine(TieredMachine):
    """The same, for longer."""


TieredMachine.TestCase.settings = settings(
    max_examples=6, stateful_step_count=25, deadline=None, phases=[Phase.generate]
)
TestTiersAgainstADictionary = TieredMachine.TestCase
LongTieredMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
TestTiersAgainstADictionaryForLong = pytest.mark.slow(LongTieredMachine.TestCase)


def test_rows_that_are_used_often_stay_in_memory(tmp_path: Path) -> None:
    """Few hot rows in every call and a stream of rows seen once: the hot ones are never read from the disk."""
    store = tiered(tmp_path)
    hot = KeySet(POOL.tables[8:28], POOL.keys[8:28])
    for start in range(0, 3000, 30):
        cold = KeySet(
            np.zeros(30, np.uint16), mix64_reference(np.arange(10**6 + start, 10**6 + start + 30).astype(np.uint64))
        )
        store.pull(hot, create=Create.YES)
        store.pull(cold, create=Create.YES)
    counts = store.use().counts
    assert counts.created == 3020
    assert counts.ssd <= 40  # of 1980
    assert counts.memory >= 1940
    assert counts.evicted >= 3020 - RESIDENT - 60
    store.close()


def test_reading_for_a_score_moves_nothing(tmp_path: Path) -> None:
    store = tiered(tmp_path)
    store.pull(POOL, create=Create.YES)
    before = store.use()
    rows = store.pull(POOL, create=Create.NO)
    after = store.use()
    assert rows.any(axis=1).all()
    assert (after.memory_rows, after.ssd.rows) == (before.memory_rows, before.ssd.rows)
    assert after.ssd.written_bytes == before.ssd.written_bytes
    store.close()


def test_a_cut_needs_the_values_of_leased_rows_and_tells_no_changes(tmp_path: Path) -> None:
    store = tiered(tmp_path)
    store.pull(POOL, create=Create.YES)
    some = KeySet(POOL.tables[:6], POOL.keys[:6])
    rows = store.lease(some, holder=1)
    store.note_leased(some[:2], rows[:2], holder=1)
    with pytest.raises(ProtocolError, match="towers hold 6 rows of a, b and have told the values of 2"):
        store.begin_snapshot()
    with pytest.raises(LeaseError, match="is held by tower 0"):
        store.note_leased(some, rows, holder=2)
    with pytest.raises(ProtocolError, match=r"set snapshots\.deltas to 0"):
        store.begin_snapshot(since=store.mark())
    store.note_leased(some, rows, holder=1)
    store.note_leased(some, rows, holder=1)
    cut = store.begin_snapshot()
    assert cut.held == len(POOL)
    assert store.use().ssd.disk_bytes > 0
    cut.close()
    with pytest.raises(ProtocolError, match="closed before it was read"):
        list(cut.chunks())
    store.close()


def test_wrong_shapes_and_tables_are_refused(tmp_path: Path) -> None:
    store = tiered(tmp_path)
    keys = KeySet(POOL.tables[:4], POOL.keys[:4])
    with pytest.raises(ProtocolError, match=r"gradients: got shape \(4, 3\), expected \(4, 16\)"):
        store.push(keys, np.zeros((4, 3), np.float32))
    with pytest.raises(ProtocolError, match=r"rows: got shape \(4, 2\), expected \(4, 32\)"):
        store.write_rows(keys, np.zeros((4, 2), np.float32))
    with pytest.raises(ProtocolError, match="holders are numbered 1 to 4095"):
        store.lease(keys, holder=4096)
    store.lease(keys, holder=1)
    with pytest.raises(ProtocolError, match=r"rows: got shape \(4, 2\), expected \(4, 32\)"):
        store.give_back(keys, np.zeros((4, 2), np.float32), holder=1)
    with pytest.raises(ProtocolError, match="rows of table 1 were asked"):
        store.pull(KeySet(np.ones(1, np.uint16), np.ones(1, np.uint64)), create=Create.NO)
    store.close()


def test_a_budget_without_room_for_rows_is_an_error_with_numbers(tmp_path: Path) -> None:
    with pytest.raises(
        CapacityError, match=r"the budget of \d+ bytes has no room for rows beside indexes .*memory_bytes"
    ):
        tiered(tmp_path, rows=-400)
