"""Token streams on disk, and the order of their blocks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.data.permutation import Permutation
from hetero.data.token_blocks import TokenBlocks, positions_of
from hetero.data.token_store import TokenStore, write_tokens
from hetero.errors import DataError


def stored(folder: Path, tokens: np.ndarray, *, pieces: int = 3, batch_tokens: int = 64) -> TokenStore:
    write_tokens(
        folder,
        np.array_split(tokens.astype(np.int64), pieces),
        tokenizer="byte",
        vocabulary=70_000,
        batch_tokens=batch_tokens,
    )
    return TokenStore(folder)


@given(st.integers(1, 400), st.integers(0, 2**40))
def test_a_permutation_is_one(size: int, seed: int) -> None:
    order = Permutation(size=size, seed=seed).at(np.arange(size))
    assert sorted(order.tolist()) == list(range(size))


def test_permutations_differ_by_seed_and_do_not_keep_neighbours() -> None:
    first = Permutation(size=10_000, seed=1).at(np.arange(10_000))
    second = Permutation(size=10_000, seed=2).at(np.arange(10_000))
    assert (first == second).mean() < 0.01
    assert (np.diff(first) == 1).mean() < 0.01
    assert abs(np.corrcoef(np.arange(10_000), first)[0, 1]) < 0.05


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_slice_is_that_of_the_stream(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 300))
    tokens = np.arange(count) * 7 % 66_000
    store = stored(tmp_path_factory.mktemp("tokens"), tokens, pieces=data.draw(st.integers(1, 9)), batch_tokens=32)
    start = data.draw(st.integers(0, count))
    length = data.draw(st.integers(0, count - start))
    np.testing.assert_array_equal(store.slice(start, length), tokens[start : start + length])


@pytest.mark.parametrize("ways", [1, 2, 3, 4, 6])
def test_batches_are_the_same_for_any_number_of_data_ways(tmp_path: Path, ways: int) -> None:
    store = stored(tmp_path, np.arange(1000))
    blocks = TokenBlocks(store, stride=8, length=9, seed=3)
    alone = blocks.at(positions_of(240, batch_size=12, way=0, ways=1))
    together = [blocks.at(positions_of(240, batch_size=12, way=way, ways=ways)) for way in range(ways)]
    np.testing.assert_array_equal(np.concatenate(together), alone)


def test_an_epoch_holds_every_block_once_and_the_next_one_others(tmp_path: Path) -> None:
    store = stored(tmp_path, np.arange(1000))
    blocks = TokenBlocks(store, stride=8, length=9, seed=3)
    first = blocks.at(np.arange(blocks.per_epoch))
    starts = np.sort(first[:, 0])
    assert (np.diff(starts) == 8).all()
    np.testing.assert_array_equal(first - first[:, :1], np.tile(np.arange(9), (len(first), 1)))
    second = np.sort(blocks.at(np.arange(blocks.per_epoch, 2 * blocks.per_epoch))[:, 0])
    assert (np.diff(second) == 8).all()
    assert (blocks.at(np.arange(5)) != blocks.at(np.arange(5) + blocks.per_epoch)).any()
    across = blocks.at(np.arange(blocks.per_epoch - 2, blocks.per_epoch + 2))
    np.testing.assert_array_equal(across[:2], first[-2:])


def test_evaluation_reads_in_order(tmp_path: Path) -> None:
    blocks = TokenBlocks(stored(tmp_path, np.arange(30)), stride=8, length=9, seed=3)
    assert [blocks.ordered_at(number)[0] for number in range(blocks.ordered)] == [0, 8, 16]


def test_what_is_amiss_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"token ids from 0 to 9 do not fit a vocabulary of 5"):
        write_tokens(tmp_path / "a", [np.arange(10)], tokenizer="byte", vocabulary=5)
    with pytest.raises(DataError, match="no text in the files"):
        write_tokens(tmp_path / "b", [], tokenizer="byte", vocabulary=5)
    with pytest.raises(DataError, match="make them with `hetero data text`"):
        TokenStore(tmp_path / "c")
    store = stored(tmp_path / "d", np.arange(20))
    with pytest.raises(DataError, match="tokens 15 to 25 were asked for, there are 20"):
        store.slice(15, 10)
    with pytest.raises(DataError, match="20 tokens hold no block of 17 from a free first token"):
        TokenBlocks(store, stride=16, length=17, seed=0)
    meta = tmp_path / "d" / "meta.json"
    record = json.loads(meta.read_text())
    meta.write_text(json.dumps({**record, "tokens": 21}))
    with pytest.raises(DataError, match=r"holds 20 tokens, meta.json says 21"):
        TokenStore(tmp_path / "d")
    meta.write_text(json.dumps({**record, "version": 9}))
    with pytest.raises(DataError, match="is of version 9"):
        TokenStore(tmp_path / "d")
    meta.write_text(json.dumps({**record, "more": 9}))
    with pytest.raises(DataError, match="describes no tokens"):
        TokenStore(tmp_path / "d")
    meta.write_text(json.dumps(record))
    (tmp_path / "d" / "tokens.arrow").write_bytes(b"ARROW1")
    with pytest.raises(DataError, match="pack the text again"):
        TokenStore(tmp_path / "d")
