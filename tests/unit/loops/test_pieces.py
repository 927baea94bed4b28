"""Pieces asked for together: each gets its own part, few calls are made, each of one split of one reader."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hetero.exchange.messages import Done, Pending
from hetero.loops.pieces import PiecesAsked
from hetero.records import Piece

MOST = 3


def pieces_of(places: list[tuple[int, int]]) -> list[Piece]:
    return [Piece(reader, 0, split, 10 * n, 10 * n + 10) for n, (reader, split) in enumerate(places)]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), max_size=20), st.permutations(range(20)))
def test_every_piece_gets_its_part_in_any_order(places: list[tuple[int, int]], order: list[int]) -> None:
    calls: list[tuple[int, tuple[Piece, ...]]] = []
    taken: list[str] = []

    def ask(reader: int, pieces: Sequence[Piece]) -> Pending[tuple[str, ...]]:
        calls.append((reader, tuple(pieces)))
        return Done(tuple(f"{piece.start}" for piece in pieces))

    def take(part: str) -> str:
        taken.append(part)
        return part

    asked, pieces = PiecesAsked(ask, most=MOST, take=take), pieces_of(places)
    given_by = [asked.add(piece) for piece in pieces]
    asked.send()
    asked.send()
    for number in (n for n in order if n < len(pieces)):
        assert given_by[number]() == str(pieces[number].start)
        assert given_by[number]() == str(pieces[number].start)
    assert sorted(taken) == sorted(str(piece.start) for piece in pieces)  # each once
    assert [piece for _, called in calls for piece in called] == pieces
    for reader, called in calls:
        assert {(piece.reader, piece.position) for piece in called} == {(reader, called[0].position)}
        assert len(called) <= MOST
    for (_, first), (_, second) in pairwise(calls):  # no call is cut short without need
        same = (first[0].reader, first[0].position) == (second[0].reader, second[0].position)
        assert not same or len(first) == MOST
