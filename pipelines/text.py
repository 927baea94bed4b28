"""Packs text files into token streams for deep models: `<folder>/train` and `<folder>/validation`."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from hetero.data.token_store import TokenMeta, write_tokens
from hetero.errors import DataError, UserError
from hetero.records.arrays import I64
from pipelines.text_codec import TextCodec, TokenizerKind, make_codec

TRAIN = "train"
VALIDATION = "validation"
_PIECE_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedText:
    """What `pack_text` wrote."""

    folder: str
    tokenizer: str
    vocabulary: int
    train_tokens: int
    validation_tokens: int
    characters: int

    def to_dict(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}

    def describe(self) -> str:
        per = self.characters / max(1, self.train_tokens + self.validation_tokens)
        return (
            f"{self.folder}: {self.train_tokens:,} tokens to train on, {self.validation_tokens:,} to validate on "
            f"({self.tokenizer}, {self.vocabulary:,} ids, {per:.2f} characters a token)"
        )


def pack_text(
    files: Sequence[str],
    *,
    folder: Path,
    tokenizer: TokenizerKind = TokenizerKind.BYTE,
    vocabulary: int | None = None,
    tokenizer_files: Path | None = None,
    validation: float = 0.1,
) -> PackedText:
    """Write the tokens of `files`, in the order of their names; the last `validation` of all characters apart.

    vocabulary: of `bpe`, ids in all; of `char`, most characters kept. Files may be compressed (by their ending).
    Raises UserError and DataError for what cannot be packed.
    """
    if not 0.0 <= validation < 1.0:
        raise UserError(f"--validation: is {validation:g}; it is the share of text kept for validation, in [0, 1)")
    paths = [Path(path) for path in sorted(files)]
    sizes = {str(path): sum(len(piece) for piece in _pieces(path)) for path in paths}
    total = sum(sizes.values())
    codec = make_codec(
        lambda: (piece for path in paths for piece in _pieces(path)), tokenizer, vocabulary, tokenizer_files
    )
    cut = int(total * (1.0 - validation))
    written = {
        TRAIN: _write(codec, paths, sizes, folder / TRAIN, start=0, stop=cut),
        VALIDATION: _write(codec, paths, sizes, folder / VALIDATION, start=cut, stop=total) if cut < total else None,
    }
    train, held_out = written[TRAIN], written[VALIDATION]
    assert train is not None
    return PackedText(
        folder=str(folder),
        tokenizer=tokenizer.value,
        vocabulary=codec.vocabulary,
        train_tokens=train.tokens,
        validation_tokens=held_out.tokens if held_out else 0,
        characters=total,
    )


def _write(
    codec: TextCodec, paths: Sequence[Path], sizes: dict[str, int], folder: Path, *, start: int, stop: int
) -> TokenMeta:
    codec.save(folder)
    return write_tokens(
        folder,
        _tokens(codec, paths, sizes, start=start, stop=stop),
        tokenizer=codec.kind.value,
        vocabulary=codec.vocabulary,
        mask=codec.mask,
        end=codec.end,
        sources={path.name: path.stat().st_size for path in paths},
        word_starts=codec.word_starts(),
    )


def _tokens(codec: TextCodec, paths: Sequence[Path], sizes: dict[str, int], *, start: int, stop: int) -> Iterator[I64]:
    """Tokens of characters [start, stop) of all files joined; after a file that ends there, the end token."""
    place = 0
    for path in paths:
        for piece in _pieces(path):
            part = piece[max(0, start - place) : max(0, stop - place)]
            place += len(piece)
            if part:
                yield codec.encode(part)
        if codec.end is not None and start < place <= stop and sizes[str(path)]:
            yield np.array([codec.end], np.int64)


def _pieces(path: Path) -> Iterator[str]:
    """A file's text in pieces that end with a line, or are very long."""
    held, decoder = "", codecs.getincrementaldecoder("utf-8")()
    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            while block := stream.read(_PIECE_CHARACTERS):
                held += decoder.decode(block)
                cut = held.rfind("\n") + 1
                if cut:
                    yield held[:cut]
                    held = held[cut:]
            decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is no UTF-8 text ({error.reason})") from error
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    if held:
        yield held
