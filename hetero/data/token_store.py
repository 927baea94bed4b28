"""Text as tokens on disk: one long stream in Arrow IPC files, read through a memory map, beside what made it.

A folder holds `tokens.arrow`, `meta.json`, the tokenizer's own file, and `word_starts.npy` where words are known. The
stream lies in record batches of equal length, so that the place of any token is a division.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hetero.errors import DataError
from hetero.records.arrays import I64

TOKENS = "tokens.arrow"
META = "meta.json"
WORD_STARTS = "word_starts.npy"
VERSION = 1
BATCH_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMeta:
    """What the tokens are. vocabulary: ids are below it. mask: the id that stands for a hidden token, None without one.

    end: the id after each document, None without one. sha256: of the tokens as int32. sources: bytes by file name.
    """

    tokenizer: str
    vocabulary: int
    tokens: int
    sha256: str
    mask: int | None = None
    end: int | None = None
    sources: Mapping[str, int] = field(default_factory=dict)
    batch_tokens: int = BATCH_TOKENS
    version: int = VERSION


def write_tokens(
    folder: Path,
    pieces: Iterable[I64],
    *,
    tokenizer: str,
    vocabulary: int,
    mask: int | None = None,
    end: int | None = None,
    sources: Mapping[str, int] | None = None,
    word_starts: npt.NDArray[np.bool_] | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> TokenMeta:
    """Write a stream given in pieces. word_starts: bool [vocabulary], whether a token begins a word.

    Raises DataError for an id outside the vocabulary and for a stream without tokens.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kind = pa.uint16() if vocabulary <= 1 << 16 else pa.int32()
    digest, total = hashlib.sha256(), 0
    schema = pa.schema([("token", kind)])
    with pa.OSFile(str(folder / TOKENS), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in _equal_batches(pieces, batch_tokens):
            if batch.min() < 0 or batch.max() >= vocabulary:
                raise DataError(
                    f"{folder}: token ids from {batch.min()} to {batch.max()} do not fit a vocabulary of {vocabulary}"
                )
            digest.update(batch.astype(np.int32).tobytes())
            total += len(batch)
            writer.write_batch(pa.record_batch([pa.array(batch, type=kind)], schema=schema))
    if total == 0:
        raise DataError(f"{folder}: there is no text in the files, so no tokens; give other files")
    if word_starts is not None:
        np.save(folder / WORD_STARTS, word_starts)
    meta = TokenMeta(
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        tokens=total,
        sha256=digest.hexdigest(),
        mask=mask,
        end=end,
        sources=dict(sources or {}),
        batch_tokens=batch_tokens,
    )
    (folder / META).write_text(json.dumps(asdict(meta), indent=2) + "\n", encoding="utf-8")
    return meta


class TokenStore:
    """Tokens for reading. Raises DataError when the folder holds none, or they are cut short or of another version."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.meta = read_meta(self.folder)
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(self.folder / TOKENS)))
            batches = [reader.get_batch(number).column(0) for number in range(reader.num_record_batches)]
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(f"{self.folder / TOKENS}: cannot be read ({error}); pack the text again") from error
        self._batches: list[npt.NDArray[Any]] = [column.to_numpy(zero_copy_only=True) for column in batches]
        found = sum(len(batch) for batch in self._batches)
        if found != self.meta.tokens:
            raise DataError(
                f"{self.folder / TOKENS}: holds {found} tokens, {META} says {self.meta.tokens}; pack the text again"
            )

    def __len__(self) -> int:
        return self.meta.tokens

    @property
    def word_starts(self) -> npt.NDArray[np.bool_] | None:
        path = self.folder / WORD_STARTS
        return np.load(path) if path.is_file() else None

    def slice(self, start: int, length: int) -> I64:
        """Tokens [start, start + length), int64. Raises DataError past the end."""
        if start < 0 or start + length > len(self):
            raise DataError(f"{self.folder}: tokens {start} to {start + length} were asked for, there are {len(self)}")
        parts, size = [], self.meta.batch_tokens
        while length > 0:
            number, inside = divmod(start, size)
            part = self._batches[number][inside : inside + length]
            parts.append(part)
            start, length = start + len(part), length - len(part)
        return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)


def _equal_batches(pieces: Iterable[I64], size: int) -> Iterable[I64]:
    held: list[I64] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += len(piece)
        if count < size:
            continue
        joined = np.concatenate(held)
        whole = count // size * size
        for start in range(0, whole, size):
            yield joined[start : start + size]
        held, count = [joined[whole:]], count - whole
    if count:
        yield np.concatenate(held)


def read_meta(folder: Path) -> TokenMeta:
    """What a folder's tokens are. Raises DataError when it holds none, or of another version."""
    path = folder / META
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: holds no tokens ({META}: {error}); make them with `hetero data text`") from error
    if record.get("version") != VERSION:
        raise DataError(f"{path}: is of version {record.get('version')}, this build reads version {VERSION}")
    try:
        return TokenMeta(**record)
    except TypeError as error:
        raise DataError(f"{path}: describes no tokens ({error})") from error
