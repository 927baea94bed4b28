"""What there is to read: paths, globs, folders and URIs become files, files become splits, all in a fixed order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from hetero.data.delimited import layout_of
from hetero.data.filesystem import (
    absolute,
    codec_of,
    ending_of,
    is_uri,
    locate,
    reading,
    without_codec,
)
from hetero.data.lines import first_line_of, has_more_than_one_line
from hetero.data.parquet import footer_of, row_groups
from hetero.data.schema import LIBSVM_COLUMNS, check_fixed, check_types
from hetero.data.shuffle import pass_order
from hetero.errors import DataError
from hetero.records import I64, DataSpec, Format, SplitRef

_ENDINGS = {
    ".parquet": Format.PARQUET,
    ".pq": Format.PARQUET,
    ".csv": Format.CSV,
    ".tsv": Format.TSV,
    ".libsvm": Format.LIBSVM,
    ".svm": Format.LIBSVM,
    ".svmlight": Format.LIBSVM,
}
_TEXT_ENDINGS = ("", ".txt", ".csv", ".tsv", ".tab", ".dat", ".data", ".log", ".libsvm", ".svm", ".svmlight")
_PARQUET_ENDINGS = ("", ".parquet", ".pq")
_LISTING_THREADS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One input file. path: absolute, or a URI. format: never AUTO. size: bytes as stored."""

    path: str
    format: Format
    size: int


def find_files(spec: DataSpec) -> tuple[SourceFile, ...]:
    """The files of `spec.paths`: in the order of the paths, sorted by name inside a folder or glob, each once.

    A folder gives all its files at any depth whose ending fits the format; hidden ones (a name that begins with
    a dot or an underscore) are skipped, as are endings that stand for no format. In globs `*`, `?` and `[...]`
    stay within one level, `**` spans levels; URIs take no `?`.
    Raises DataError naming the path when nothing matches, a file cannot be read or its format is not known.
    """
    if not spec.paths:
        raise DataError("data.paths is empty; name at least one file, folder, glob or URI")
    files: dict[str, SourceFile] = {}
    for given in spec.paths:
        found = list(_expand(absolute(given), given=given, spec=spec))
        if not found:
            raise DataError(
                f"no {_wanted(spec)} file matches {given} (looked at {absolute(given)}); check the path, and"
                " that the files' ending says their format or data.format does"
            )
        for file in found:
            files.setdefault(file.path, file)
    return tuple(files.values())


def first_schema(spec: DataSpec) -> pa.Schema:
    """Columns and types of the first file, whatever the job wants of it; cells of text files are strings.

    Raises DataError when there is no file or it cannot be read.
    """
    file = find_files(spec)[0]
    if file.format is Format.PARQUET:
        return footer_of(file.path).schema.to_arrow_schema()
    if file.format is Format.LIBSVM:
        return pa.schema(zip(LIBSVM_COLUMNS, (pa.string(), pa.large_list(pa.uint64())), strict=True))
    bare = replace(spec, dense=(), sparse=(), label=None, weight=None, gauc_column=None, keep=())
    return pa.schema([(name, pa.string()) for name in layout_of(file.path, kind=file.format, spec=bare).names])


def check_schema(spec: DataSpec) -> None:
    """Checks every file's columns, and in Parquet their types, without reading rows.

    Raises DataError: no such file, unreadable, empty or truncated file, missing column (the nearest names are
    given), mistyped column (all of one file in one error).
    """
    for file in find_files(spec):
        _check_file(file, spec=spec)


def list_splits(spec: DataSpec) -> tuple[SplitRef, ...]:
    """The splits of one pass, in file order, numbered from 0; columns and types of every file are checked.

    Parquet: row groups that hold rows. Uncompressed text: ranges of `text_block_bytes`. Compressed text: whole
    files. Raises DataError as `check_schema` does, and when no file holds a row.
    """
    if spec.text_block_bytes < 1:
        raise DataError(f"data.text_block_bytes is {spec.text_block_bytes}; it must be at least 1 byte")
    files = find_files(spec)
    with ThreadPoolExecutor(min(_LISTING_THREADS, len(files))) as pool:
        per_file = list(pool.map(lambda file: _splits_of(file, spec=spec), files))
    parts = [part for parts in per_file for part in parts]
    if not parts:
        raise DataError(
            f"no rows in {', '.join(file.path for file in files[:3])}"
            f"{f' and {len(files) - 3} more files' if len(files) > 3 else ''}: every file has only a header"
            " or a schema; point data.paths at files with rows"
        )
    return tuple(replace(part, position=i) for i, part in enumerate(parts))


def split_order(count: int, *, spec: DataSpec, epoch: int) -> I64:
    """The order in which the `count` splits of a pass are read: int64 [count] of positions.

    The identity without `spec.shuffle`, else a permutation drawn from (seed, epoch).
    """
    return pass_order(count, spec=spec, epoch=epoch) if spec.shuffle else np.arange(count, dtype=np.int64)


def _splits_of(file: SourceFile, *, spec: DataSpec) -> list[SplitRef]:
    def part(group: int = 0, start: int = 0, stop: int = 0) -> SplitRef:
        return SplitRef(position=0, path=file.path, format=file.format, part=group, start=start, stop=stop)

    if file.format is Format.PARQUET:
        return [part(group) for group, _ in row_groups(file.path, spec=spec)]
    _check_file(file, spec=spec)
    headed = file.format in (Format.CSV, Format.TSV) and spec.columns is None
    if headed and not has_more_than_one_line(file.path):
        return []
    if codec_of(file.path) is not None:
        return [part(stop=file.size)]
    step = spec.text_block_bytes
    return [part(start=at, stop=min(at + step, file.size)) for at in range(0, file.size, step)]


def _check_file(file: SourceFile, *, spec: DataSpec) -> None:
    if file.format is Format.PARQUET:
        check_types(footer_of(file.path).schema.to_arrow_schema(), spec=spec, path=file.path)
        return
    if first_line_of(file.path) is None:
        raise DataError(f"{file.path} is empty (0 bytes); write it again or take it out of data.paths")
    if file.format is Format.LIBSVM:
        check_fixed(spec, kind=file.format, path=file.path)
    else:
        layout_of(file.path, kind=file.format, spec=spec)


def _wanted(spec: DataSpec) -> str:
    return "data" if spec.format is Format.AUTO else spec.format.value


def _expand(path: str, *, given: str, spec: DataSpec) -> Iterator[SourceFile]:
    info = _info(path)
    if info.type == pafs.FileType.File:
        yield SourceFile(path=path, format=_format_of(path, spec=spec), size=info.size)
    elif info.type == pafs.FileType.Directory:
        yield from _folder(path, spec=spec)
    elif _wild_segment(path) is not None:
        yield from _glob(path, spec=spec)
    else:
        raise DataError(f"{given} does not exist (looked at {path}); correct data.paths")


def _folder(path: str, *, spec: DataSpec) -> Iterator[SourceFile]:
    for name, info in _listing(path, recursive=True):
        if info.type == pafs.FileType.File and not _hidden(name) and _fits(name, spec=spec):
            child = _child(path, name)
            yield SourceFile(path=child, format=_format_of(child, spec=spec), size=info.size)


def _glob(path: str, *, spec: DataSpec) -> Iterator[SourceFile]:
    segments = _segments(path)
    first = _wild_segment(path)
    assert first is not None
    base, pattern = _with_path(path, "/".join(segments[:first]) or "/"), "/".join(segments[first:])
    if _info(base).type != pafs.FileType.Directory:
        return
    matches = re.compile(_glob_regex(pattern)).fullmatch
    for name, info in _listing(base, recursive="/" in pattern or "**" in pattern):
        if not matches(name) or (_hidden(name) and not _hidden(pattern)):
            continue
        child = _child(base, name)
        if info.type == pafs.FileType.Directory:
            yield from _folder(child, spec=spec)
        elif info.type == pafs.FileType.File:
            yield SourceFile(path=child, format=_format_of(child, spec=spec), size=info.size)


def _info(path: str) -> Any:
    location = locate(path)
    with reading(path):
        return location.filesystem.get_file_info(location.path)


def _listing(folder: str, *, recursive: bool) -> list[tuple[str, Any]]:
    """(path below `folder`, info) of its entries, sorted by path."""
    location = locate(folder)
    with reading(folder):
        infos = location.filesystem.get_file_info(pafs.FileSelector(location.path, recursive=recursive))
    cut = len(location.path.rstrip("/")) + 1
    return sorted(((info.path[cut:], info) for info in infos), key=lambda entry: entry[0])


def _segments(path: str) -> list[str]:
    return (urlsplit(path).path if is_uri(path) else path).split("/")


def _wild_segment(path: str) -> int | None:
    """Number of the first path segment that holds a wildcard; None when none does."""
    wild = "*[" if is_uri(path) else "*?["
    for i, segment in enumerate(_segments(path)):
        if any(character in segment for character in wild):
            return i
    return None


def _with_path(path: str, inner: str) -> str:
    return urlunsplit(urlsplit(path)._replace(path=inner)) if is_uri(path) else inner


def _child(folder: str, name: str) -> str:
    inner = (urlsplit(folder).path if is_uri(folder) else folder).rstrip("/")
    return _with_path(folder, f"{inner}/{quote(name) if is_uri(folder) else name}")


def _hidden(name: str) -> bool:
    return any(segment.startswith((".", "_")) for segment in name.split("/"))


def _glob_regex(pattern: str) -> str:
    """A regular expression for a glob: `*`, `?` and `[...]` match within a level, `**` over levels."""
    out = []
    for piece in re.findall(r"\*\*/?|\*|\?|\[!?[^\]]+\]|.", pattern, flags=re.DOTALL):
        if piece == "**/":
            out.append("(?:.*/)?")
        elif piece == "**":
            out.append(".*")
        elif piece == "*":
            out.append("[^/]*")
        elif piece == "?":
            out.append("[^/]")
        elif piece.startswith("[") and len(piece) > 1:
            inside = piece[1:-1].replace("\\", "\\\\")
            out.append(f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]")
        else:
            out.append(re.escape(piece))
    return "".join(out)


def _fits(path: str, *, spec: DataSpec) -> bool:
    """Whether a file of a folder is input, by its ending."""
    plain = PurePosixPath(without_codec(path))
    if spec.format is Format.AUTO:
        return plain.suffix.lower() in _ENDINGS
    endings = _PARQUET_ENDINGS if spec.format is Format.PARQUET else _TEXT_ENDINGS
    return plain.suffix.lower() in endings


def _format_of(path: str, *, spec: DataSpec) -> Format:
    codec = codec_of(path)
    kind = spec.format
    if kind is Format.AUTO:
        ending = ending_of(without_codec(path))
        if ending not in _ENDINGS:
            raise DataError(
                f"{path}: the ending does not say the format; known are {', '.join(_ENDINGS)} (and these followed"
                " by a compression's ending). Rename the file, or set data.format"
            )
        kind = _ENDINGS[ending]
    if kind is Format.PARQUET and codec is not None:
        raise DataError(
            f"{path}: a Parquet file cannot be read while it is compressed as a whole; decompress it (Parquet"
            " compresses its own pages)"
        )
    return kind
