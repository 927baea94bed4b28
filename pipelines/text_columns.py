"""Columns of text to columns of token ids, for jobs of text and clicks; and the texts packed for pretraining.

data/x/{train,test}.parquet, column `text` -> OUT/{train,test}.parquet with `text_tokens`, all else as it was
                                           -> OUT/text/{train,validation}, as `hetero data text` writes them
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hetero.data.buffers import is_text
from hetero.data.token_store import read_meta, write_tokens
from hetero.errors import DataError, UserError
from hetero.records.arrays import I64
from pipelines.text import TRAIN, VALIDATION
from pipelines.text_codec import TextCodec, TokenizerKind, load_codec, make_codec

TEXTS = "text"
SUFFIX = "_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenColumns:
    """What was written. files: the Parquet files; tokenizer: its folder; share_cut: of the texts of the first file that
    have more than `length` tokens, by length."""

    files: tuple[str, ...]
    column: str
    tokenizer: str
    kind: str
    vocabulary: int
    texts: int
    mean_tokens: float
    share_cut: dict[int, float]

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    def describe(self) -> str:
        """One line for people."""
        cut = ", ".join(f"{share:.0%} over {length}" for length, share in self.share_cut.items())
        return (
            f"{', '.join(self.files)}: column `{self.column}` by {self.kind} with {self.vocabulary:,} ids, "
            f"{self.mean_tokens:.1f} tokens a text on average ({cut}); the tokenizer lies in {self.tokenizer}"
        )


def add_tokens(
    files: Sequence[str],
    *,
    column: str,
    folder: Path,
    kind: TokenizerKind = TokenizerKind.BPE,
    vocabulary: int | None = None,
    tokenizer: Path | None = None,
    tokenizer_files: Path | None = None,
    validation: float = 0.05,
) -> TokenColumns:
    """Write `files` anew into `folder` with a list column `<column>_tokens` of int32 beside the others.

    A tokenizer that learns does so from the first file, which is the training data. tokenizer: a folder with one that
    is there already, in place of `kind`. validation: share of the first file's texts kept apart for pretraining.
    Raises UserError and DataError for what cannot be read or written over.
    """
    paths = [Path(file) for file in files]
    _check(paths, column, folder)
    first = _distinct(pq.read_table(paths[0], columns=[column])[column])
    if tokenizer is None:
        codec = make_codec(lambda: iter(first), kind, vocabulary, tokenizer_files)
        _pack(codec, first, folder / TEXTS, validation=validation)
        tokenizer = folder / TEXTS / TRAIN
    else:
        codec = load_codec(tokenizer, kind=read_meta(tokenizer).tokenizer)
    written = [_write(path, folder / path.name, column, codec) for path in paths]
    lengths = written[0]
    return TokenColumns(
        files=tuple(str(folder / path.name) for path in paths),
        column=column + SUFFIX,
        tokenizer=str(tokenizer),
        kind=codec.kind.value,
        vocabulary=codec.vocabulary,
        texts=sum(len(one) for one in written),
        mean_tokens=float(lengths.mean()) if len(lengths) else 0.0,
        share_cut={length: float((lengths > length).mean()) for length in (32, 64, 128, 256)},
    )


def _check(paths: Sequence[Path], column: str, folder: Path) -> None:
    for path in paths:
        try:
            schema = pq.read_schema(path)
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(f"{path}: is no Parquet file that can be read ({str(error).splitlines()[0]})") from error
        if column not in schema.names:
            raise UserError(f"{path}: there is no column `{column}` (it has {', '.join(schema.names)})")
        if not is_text(schema.field(column).type):
            raise UserError(f"{path}: column `{column}` holds {schema.field(column).type}; it must be text")
        if path.parent.resolve() == folder.resolve():
            raise UserError(f"{path}: lies in --folder {folder} and would be written over; give another folder")
    if len({path.name for path in paths}) < len(paths):
        raise UserError(
            f"files of one name ({', '.join(path.name for path in paths)}) cannot lie in one folder; rename"
        )


def _distinct(column: pa.ChunkedArray) -> list[str]:
    """Texts that are there, each once, in order of their first row."""
    texts: list[str] = pc.unique(column.drop_null()).to_pylist()
    return texts


def _write(source: Path, target: Path, column: str, codec: TextCodec) -> I64:
    """One file, row group by row group; returns how many tokens each of its texts has."""
    reader, lengths = pq.ParquetFile(source), []
    target.parent.mkdir(parents=True, exist_ok=True)
    known: dict[str, I64] = {}
    schema = reader.schema_arrow.remove_metadata().append(pa.field(column + SUFFIX, pa.list_(pa.int32())))
    part = target.with_name(f".{target.name}.part")
    with pq.ParquetWriter(part, schema, compression="zstd") as writer:
        for number in range(reader.num_row_groups):
            table = reader.read_row_group(number)
            tokens = _tokens_of(table[column].to_pylist(), codec, known)
            lengths.append(np.diff(tokens.offsets.to_numpy())[~np.asarray(pc.is_null(tokens))])
            writer.write_table(table.append_column(schema.field(column + SUFFIX), tokens).cast(schema))
    part.replace(target)
    return np.concatenate(lengths).astype(np.int64) if lengths else np.empty(0, np.int64)


def _tokens_of(texts: Sequence[str | None], codec: TextCodec, known: dict[str, I64]) -> pa.ListArray:
    """Token ids of each text, null where there is none. known: texts done before, which are not done again."""
    rows: list[I64] = []
    for text in texts:
        if text is not None and text not in known:
            known[text] = codec.encode(text)
        rows.append(np.empty(0, np.int64) if text is None else known[text])
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32)
    values = np.concatenate([*rows, np.empty(0, np.int64)]).astype(np.int32)
    missing = pa.array([text is None for text in texts], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), mask=missing)


def _pack(codec: TextCodec, texts: Sequence[str], folder: Path, *, validation: float) -> None:
    cut = max(1, round(len(texts) * (1.0 - validation)))
    for name, some in ((TRAIN, texts[:cut]), (VALIDATION, texts[cut:])):
        if some:
            codec.save(folder / name)
            write_tokens(
                folder / name,
                _documents(codec, some),
                tokenizer=codec.kind.value,
                vocabulary=codec.vocabulary,
                mask=codec.mask,
                end=codec.end,
                word_starts=codec.word_starts(),
            )


def _documents(codec: TextCodec, texts: Sequence[str]) -> Iterator[I64]:
    for text in texts:
        yield codec.encode(text)
        if codec.end is not None:
            yield np.array([codec.end], np.int64)
