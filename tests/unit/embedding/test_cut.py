"""A cut of a store against a dictionary: whatever happens while it is read, it holds what there was before."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.embedding import cut as cut_module
from hetero.embedding.answers import Create
from hetero.embedding.cut import RowChunk, StoreCut
from hetero.embedding.epochs import Epochs
from hetero.embedding.store import RowStore
from hetero.errors import LeaseError, ProtocolError
from hetero.records import F32, GroupSpec, InitSpec, KeySet, RowOptimizerSpec, TableSpec
from tests.support.crafted_keys import colliding_hashes, keys_with_hashes
from tests.support.row_oracle import pairs
from tests.support.row_updates import assert_same_bits

SEEDS = {0: 11, 2: 2**64 - 1}
GROUP = GroupSpec(
    dim=2,
    optimizer=RowOptimizerSpec(),
    init=InitSpec(scale=0.1),
    tables=tuple(TableSpec(index=index, name=f"t{index}", seed=seed) for index, seed in SEEDS.items()),
)
Rows = dict[tuple[int, int], F32]


def key_pool(count: int, *, seed: int) -> KeySet:
    """Half of them in one shard, all in one probe sequence, the others anywhere."""
    random = np.random.default_rng(seed)
    near = keys_with_hashes(colliding_hashes(count // 2), seed=SEEDS[0])
    far = np.unique(random.integers(0, 2**64, count - len(near), dtype=np.uint64))
    tables = np.concatenate([np.zeros(len(near), np.uint16), np.full(len(far), 2, np.uint16)])
    order = random.permutation(len(tables))
    return KeySet(tables[order], np.concatenate([near, far])[order])


def everything(store: RowStore) -> Rows:
    return {identity: row for keys, rows in store.scan() for identity, row in zip(pairs(keys), rows, strict=True)}


@dataclass
class Reading:
    """A cut being read. rows: what was read; wanted: what the store held."""

    cut: StoreCut
    wanted: Rows
    since: int | None
    chunks: Iterator[RowChunk] = field(init=False)
    rows: Rows = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chunks = self.cut.chunks()

    def read(self, chunks: int) -> bool:
        """Read some chunks; whether all are read."""
        for _ in range(chunks):
            chunk = next(self.chunks, None)
            if chunk is None:
                return True
            for identity, row in zip(pairs(chunk.keys), chunk.rows, strict=True):
                assert identity not in self.rows
                self.rows[identity] = row.copy()
        return False


class Interleaving:
    """A store on which things happen, and the snapshots taken of it: base and deltas, loaded one after the other."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.store = RowStore(GROUP)
        self.pool = key_pool(120, seed=seed)
        self.reading: Reading | None = None
        self.loaded: dict[int, Rows] = {}  # by mark, what loading base and deltas gives

    def act(self, action: str, size: int) -> None:
        picked = self.random.choice(len(self.pool), min(size, len(self.pool)), replace=False)
        keys = self.pool[picked]
        if action == "push":
            gradients = self.random.normal(size=(len(keys), GROUP.dim)).astype(np.float32)
            gradients[self.random.random(len(keys)) < 0.1] = np.nan
            self.store.push(keys, gradients)
        elif action == "write":
            self.store.write_rows(keys, self.random.normal(size=(len(keys), self.store.width)).astype(np.float32))
        elif action == "load":
            self.store.load_rows(keys, self.random.normal(size=(len(keys), self.store.width)).astype(np.float32))
        elif action == "create":
            self.store.pull(keys, create=Create.YES)
        elif action == "delete":
            before = self.store.count()
            found = int(self.store.read_rows(keys).found.sum())
            assert self.store.delete_rows(keys) == found
            assert self.store.count() == before - found
            assert not self.store.read_rows(keys).found.any()
        elif action == "lease":
            rows = self.store.lease(keys, holder=3)
            self.store.give_back(keys, rows + 1, holder=3)
        elif action == "cut" and self.reading is None:
            self.begin()
        elif action == "read" and self.reading is not None and self.reading.read(size):
            self.finish()
        elif action == "drop" and self.reading is not None:
            self.reading.cut.close()
            self.reading = None

    def begin(self) -> None:
        marks = [None, *(mark for mark in self.loaded if self.store.tells_since(mark))]
        since = marks[self.random.integers(len(marks))]
        cut = self.store.begin_snapshot(since=since)
        self.reading = Reading(cut, everything(self.store), since)
        assert cut.held == len(self.reading.wanted)

    def finish(self) -> None:
        assert self.reading is not None
        reading, self.reading = self.reading, None
        assert reading.cut.kept_rows == 0
        reading.cut.close()
        rows: Rows = {}
        if reading.since is not None:
            rows |= self.loaded[reading.since]
            for keys in reading.cut.deleted():
                for identity in pairs(keys):
                    rows.pop(identity, None)
        rows |= reading.rows
        assert_same(rows, reading.wanted)
        self.loaded[reading.cut.mark] = rows


def assert_same(got: Rows, wanted: Rows) -> None:
    assert got.keys() == wanted.keys()
    if wanted:
        assert_same_bits(np.array([got[identity] for identity in wanted]), np.array(list(wanted.values())))


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["push", "write", "load", "create", "delete", "lease", "cut", "read", "read", "drop"]),
        st.sampled_from([1, 5, 40, 120]),
    ),
    min_size=5,
    max_size=40,
)


@pytest.mark.parametrize("examples", [40, pytest.param(600, marks=pytest.mark.slow)])
def test_a_cut_holds_what_there_was_whatever_happens_meanwhile(monkeypatch: pytest.MonkeyPatch, examples: int) -> None:
    monkeypatch.setattr(cut_module, "CHUNK_ROWS", 7)

    @settings(max_examples=examples, deadline=None)
    @given(ACTIONS, st.integers(0, 2**32 - 1))
    def check(actions: list[tuple[str, int]], seed: int) -> None:
        life = Interleaving(seed)
        for action, size in [("create", 60), *actions]:
            life.act(action, size)
        if life.reading is None:
            life.begin()
        assert life.reading is not None
        assert life.reading.read(1000)
        life.finish()

    check()


def test_snapshots_beyond_the_epochs_that_rows_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_module, "CHUNK_ROWS", 7)
    life = Interleaving(5)
    forgot = 0
    for number in range(400):
        for action in ("push", "delete", "create"):
            life.act(action, 4)
        known = [mark for mark in life.loaded if life.store.tells_since(mark)]
        life.act("cut", 0)
        assert life.reading is not None
        life.act("push", 30)
        if number % 9 == 4 or 100 < number < 180:
            life.act("drop", 0)  # nothing comes to its end for longer than there are epochs
        else:
            assert life.reading.read(1000)
            life.finish()
        forgot += any(not life.store.tells_since(mark) for mark in known)
    assert forgot > 3


def test_a_delta_holds_the_rows_that_changed_and_no_others() -> None:
    store, pool = RowStore(GROUP), key_pool(120, seed=1)
    store.pull(pool, create=Create.YES)
    before = store.mark()
    pushed = pool[:30]
    store.push(pushed, np.ones((30, 2), np.float32))
    read_only = pool[30:60]
    store.pull(read_only, create=Create.YES)
    store.read_rows(read_only)
    store.lease(read_only, holder=1)
    cut = store.begin_snapshot(since=before)
    changed = {identity for chunk in cut.chunks() for identity in pairs(chunk.keys)}
    assert changed == set(pairs(pushed))
    assert cut.held == 120
    cut.close()


def test_memory_grows_by_the_rows_touched_and_shrinks_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_module, "CHUNK_ROWS", 64)
    store, random = RowStore(GROUP), np.random.default_rng(0)
    keys = np.unique(random.integers(0, 2**64, 20_000, dtype=np.uint64))
    pool = KeySet(np.zeros(len(keys), np.uint16), keys)
    store.pull(pool, create=Create.YES)
    cut = store.begin_snapshot()
    chunks = cut.chunks()
    assert store.memory().kept_bytes == 0
    for start in (0, 0, 500):
        touched = KeySet(pool.tables[start : start + 1000], keys[start : start + 1000])
        store.push(touched, np.ones((1000, 2), np.float32))
    assert cut.kept_rows == 1500
    assert store.memory().kept_bytes == 1500 * (4 + 12 + 4 * store.width)
    store.pull(KeySet(np.full(1000, 2, np.uint16), keys[:1000]), create=Create.YES)
    assert cut.kept_rows == 1500
    for _ in range(150):
        next(chunks)
    few = cut.kept_rows
    assert 0 < few < 1300
    store.push(pool, np.ones((len(pool), 2), np.float32))
    assert few < cut.kept_rows < len(pool) * 0.8
    assert sum(len(chunk.keys) for chunk in chunks) < len(pool)
    assert cut.kept_rows == 0
    cut.close()
    assert store.memory().kept_bytes == 0
    assert cut.most_kept_rows < len(pool) * 0.8


def test_threads_that_push_while_a_cut_is_read() -> None:
    """Values are numbers of pushes: every row of the cut must have what its last push before the cut left."""
    store, random = RowStore(GROUP), np.random.default_rng(0)
    keys = np.unique(random.integers(0, 2**64, 50_000, dtype=np.uint64))
    pool = KeySet(np.zeros(len(keys), np.uint16), keys)
    store.write_rows(pool, np.zeros((len(pool), 3), np.float32))
    stop = threading.Event()
    pushes = 0

    def push_on() -> None:
        nonlocal pushes
        while not stop.is_set():
            pushes += 1
            picked = random.choice(len(pool), 2000, replace=False)
            rows = np.full((2000, 3), pushes, np.float32)
            store.write_rows(KeySet(pool.tables[picked], keys[picked]), rows)
            store.pull(KeySet(np.full(50, 2, np.uint16), random.integers(0, 2**64, 50, np.uint64)), create=Create.YES)

    lane = threading.Thread(target=push_on)
    lane.start()
    try:
        for _ in range(5):
            with store._lock:
                wanted = store.read_rows(pool).rows
                cut = store.begin_snapshot()
            got = np.full((len(pool), 3), -1, np.float32)
            for chunk in cut.chunks():
                mine = chunk.keys.tables == 0
                got[np.searchsorted(keys, chunk.keys.keys[mine])] = chunk.rows[mine]
            cut.close()
            assert_same_bits(got, wanted)
    finally:
        stop.set()
        lane.join(timeout=20)
    assert pushes > 20
    assert cut.most_kept_rows > 0


def test_what_is_refused() -> None:
    store, pool = RowStore(GROUP), key_pool(20, seed=0)
    store.pull(pool, create=Create.YES)
    cut = store.begin_snapshot()
    for call in (store.begin_snapshot, store.mark):
        with pytest.raises(ProtocolError, match="one at a time"):
            call()
    chunks = cut.chunks()
    next(chunks)
    cut.close()
    cut.close()
    with pytest.raises(ProtocolError, match="closed before it was read"):
        next(chunks)
    for mark in (-2, cut.mark + 1, 99):
        with pytest.raises(ProtocolError, match="cannot tell what changed since mark"):
            store.begin_snapshot(since=mark)
    store.begin_snapshot(since=cut.mark).close()
    store.lease(pool, holder=1023)
    with pytest.raises(LeaseError, match="is held by tower 1022"):
        store.delete_rows(pool)
    with pytest.raises(ProtocolError, match="rows can note 1023 holders"):
        store.lease(pool, holder=1024)
    assert store.count() == len(pool)


def test_deletions_are_forgotten_when_nobody_will_ask() -> None:
    store, pool = RowStore(GROUP), key_pool(20, seed=0)
    store.pull(pool, create=Create.YES)
    first = store.mark()
    store.delete_rows(pool[:5])
    second = store.mark()
    store.delete_rows(pool[5:7])
    for since, deleted in ((first, 7), (second, 2)):
        cut = store.begin_snapshot(since=since)
        assert sum(map(len, cut.deleted())) == deleted
        cut.close()
    store.forget_before(second)
    cut = store.begin_snapshot(since=second)
    assert sum(map(len, cut.deleted())) == 2
    cut.close()
    assert sum(map(len, store.begin_snapshot(since=first).deleted())) == 2


def test_epochs_tell_what_changed_since_any_mark_in_use() -> None:
    epochs = Epochs()
    values: dict[int, int] = {}  # by epoch, what rows changed then hold
    for number in range(200):
        values[number] = int(epochs.field) >> 10
        assert 1 <= values[number] <= 63
        if epochs.exhausted:
            epochs.renewed()
        mark = epochs.advance()
        assert mark == number
        for since in range(number + 1):
            if epochs.tells_since(since):
                table = epochs.changed(since=since, until=mark)
                assert all(table[values[later]] for later in range(since + 1, mark + 1))
                assert table.sum() == mark - since
                assert table[0] == 0
        assert epochs.changed(since=None, until=mark).all()
