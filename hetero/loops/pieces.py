"""What readers give of pieces, asked for many pieces at once: a call costs as much as a thousand rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from hetero.exchange.messages import Pending
from hetero.records import Piece

T = TypeVar("T")


class _Answer(Generic[T]):
    """A reader's answer of some pieces, taken once it is asked for."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.pending: Pending[tuple[T, ...]] | None = None
        self._here: tuple[T, ...] | None = None

    def of(self, place: int, take: Callable[[T], T]) -> T:
        if self._here is None:
            assert self.pending is not None
            self._here = tuple(map(take, self.pending.result()))
            self.pending = None
        return self._here[place]


class PiecesAsked(Generic[T]):
    """Calls of readers under way. Pieces of a split in a row are asked for together, up to `most` of them.

    ask: (reader, pieces) begins a call. take: what is made of each part of an answer when it is here.
    """

    def __init__(
        self,
        ask: Callable[[int, Sequence[Piece]], Pending[tuple[T, ...]]],
        *,
        most: int,
        take: Callable[[T], T] = lambda part: part,
    ) -> None:
        self._ask = ask
        self._most = most
        self._take = take
        self._latest: _Answer[T] = _Answer()

    def add(self, piece: Piece) -> Callable[[], T]:
        """Ask for a piece, now or with the next ones; what gives it, once `send` was called."""
        pieces = self._latest.pieces
        latest = pieces[-1] if pieces else piece
        another = (latest.reader, latest.epoch, latest.position) != (piece.reader, piece.epoch, piece.position)
        if another or len(pieces) == self._most:
            self.send()
        answer, place = self._latest, len(self._latest.pieces)
        answer.pieces.append(piece)
        return lambda: answer.of(place, self._take)

    def send(self) -> None:
        """Ask for what was held back."""
        pieces = self._latest.pieces
        if pieces:
            self._latest.pending = self._ask(pieces[0].reader, tuple(pieces))
            self._latest = _Answer()
