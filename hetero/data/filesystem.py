"""Where files lie: local paths and the URIs of any filesystem that Arrow knows, opened with errors that say which."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from hetero.errors import DataError

CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".br": "brotli"}
UNREADABLE_CODECS = (".xz", ".lzma", ".zip", ".7z", ".rar", ".snappy", ".lzo", ".z")


@dataclass(frozen=True, slots=True)
class Location:
    """A filesystem and a path inside it."""

    filesystem: Any
    path: str


def is_uri(path: str) -> bool:
    """Whether `path` is a URI (scheme://...) rather than a local path."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.\-]*://", path) is not None


def absolute(path: str) -> str:
    """A path that means the same in every process of this machine: local ones absolute, `~` expanded."""
    return path if is_uri(path) else os.path.abspath(os.path.expanduser(path))


def locate(path: str) -> Location:
    """The filesystem of a local path or URI. Raises DataError when the URI's filesystem cannot be had."""
    if not is_uri(path):
        return Location(pafs.LocalFileSystem(), absolute(path))
    parts = urlsplit(path)
    filesystem, root = _filesystem(parts.scheme, parts.netloc, parts.query)
    inner = unquote(parts.path).strip("/")
    return Location(filesystem, f"{root.rstrip('/')}/{inner}".rstrip("/") or "/")


@lru_cache(maxsize=64)
def _filesystem(scheme: str, netloc: str, query: str) -> tuple[Any, str]:
    uri = f"{scheme}://{netloc}/" + (f"?{query}" if query else "")
    try:
        filesystem, root = pafs.FileSystem.from_uri(uri)
    except (OSError, ValueError, NotImplementedError) as error:
        raise DataError(
            f"cannot open the filesystem of {scheme}://{netloc}: {first_line(error)}; known schemes are file, s3,"
            " gs, hdfs, abfs: check spelling, credentials and network, or copy the data to a local folder"
        ) from error
    return filesystem, root


def codec_of(path: str) -> str | None:
    """Arrow's name of the codec that the file's ending stands for, None for a file that is not compressed.

    Raises DataError for compressed files that Arrow cannot read.
    """
    ending = ending_of(path)
    if ending in UNREADABLE_CODECS:
        raise DataError(
            f"{path}: files compressed as {ending} cannot be read; compress again as one of"
            f" {', '.join(CODECS)}, or leave uncompressed"
        )
    return CODECS.get(ending)


def ending_of(path: str) -> str:
    """The last ending of a path or URI in lower case, with its dot; empty when there is none."""
    return PurePosixPath(urlsplit(path).path if is_uri(path) else path).suffix.lower()


def without_codec(path: str) -> str:
    """The path without its compression ending and, for URIs, without the query."""
    plain = urlsplit(path).path if is_uri(path) else path
    return plain[: -len(ending_of(path))] if ending_of(path) in CODECS else plain


def first_line(error: BaseException) -> str:
    """An error's message without the pages some libraries add to it."""
    return str(error).strip().split("\n")[0] or type(error).__name__


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turns what Arrow and the system raise while `path` is read into a DataError that names it."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"cannot read {path}: {first_line(error)}; check that the file is complete and that this user may"
            " read it, then write it again or take it out of the data's paths"
        ) from error


def open_file(path: str) -> Any:
    """A random-access Arrow file. Call it inside `reading(path)`."""
    location = locate(path)
    return location.filesystem.open_input_file(location.path)


def open_stream(path: str) -> Any:
    """A stream of the file's uncompressed bytes. Call it inside `reading(path)`."""
    location = locate(path)
    return location.filesystem.open_input_stream(location.path, compression=codec_of(path))
