"""Text files as blocks of whole lines: byte ranges that own the lines beginning in them, and compressed streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hetero.data.filesystem import codec_of, open_file, open_stream, reading
from hetero.errors import DataError
from hetero.records import SplitRef

BLOCK_BYTES = 32 << 20
LONGEST_LINE = 64 << 20
_BOM = b"\xef\xbb\xbf"
_FIRST_READ = 64 << 10


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Whole lines of a split; only a file's last line may lack its line break. first_line: 1-based in the split."""

    data: bytes
    first_line: int


def read_blocks(ref: SplitRef) -> Iterator[LineBlock]:
    """All lines the split owns, in blocks of about BLOCK_BYTES. Raises DataError when the file cannot be read."""
    line = 1
    with reading(ref.path):
        source = _range_blocks(ref) if codec_of(ref.path) is None else _stream_blocks(ref.path)
        for data in source:
            if line == 1 and ref.start == 0 and data.startswith(_BOM):
                data = data[len(_BOM) :]
            yield LineBlock(data, line)
            line += data.count(b"\n")


def first_line_of(path: str) -> bytes | None:
    """A file's first line without line break and byte-order mark; None when the file is empty.

    Raises DataError when the file cannot be read or no line ends within LONGEST_LINE bytes.
    """
    with reading(path), open_stream(path) as stream:
        head = b""
        while b"\n" not in head:
            more = stream.read(_FIRST_READ)
            if not more:
                break
            head += more
            _check_length(len(head), path=path)
    if not head:
        return None
    return head.removeprefix(_BOM).split(b"\n", 1)[0].rstrip(b"\r")


def has_more_than_one_line(path: str) -> bool:
    """Whether anything but line breaks follows the first line."""
    with reading(path), open_stream(path) as stream:
        seen_break = False
        while chunk := stream.read(_FIRST_READ):
            if not seen_break and b"\n" in chunk:
                seen_break = True
                chunk = chunk.split(b"\n", 1)[1]
            if seen_break and chunk.strip(b"\r\n"):
                return True
    return False


def _stream_blocks(path: str) -> Iterator[bytes]:
    with open_stream(path) as stream:
        yield from _whole_lines(stream.read, path=path)


def _whole_lines(read: Callable[[int], bytes], *, path: str) -> Iterator[bytes]:
    """What `read(most)` gives, cut behind line breaks."""
    rest: list[bytes] = []
    held = 0
    while chunk := read(BLOCK_BYTES):
        cut = chunk.rfind(b"\n") + 1
        if cut == 0:
            rest.append(chunk)
            held += len(chunk)
            _check_length(held, path=path)
            continue
        yield b"".join([*rest, memoryview(chunk)[:cut]])
        rest, held = [chunk[cut:]], len(chunk) - cut
    last = b"".join(rest)
    if last:
        yield last


def _range_blocks(ref: SplitRef) -> Iterator[bytes]:
    with open_file(ref.path) as file:
        size = file.size()
        if size < ref.stop:
            raise DataError(
                f"{ref.path} has shrunk to {size} bytes while it was read (a split ends at byte {ref.stop});"
                " do not change input files during a run"
            )
        begin = _line_start(file, ref.start, path=ref.path)
        end = _line_start(file, ref.stop, path=ref.path)
        file.seek(begin)
        left = max(end - begin, 0)

        def read(most: int) -> bytes:
            nonlocal left
            chunk: bytes = file.read(min(most, left))
            left -= len(chunk)
            return chunk

        yield from _whole_lines(read, path=ref.path)


def _line_start(file: Any, at: int, *, path: str) -> int:
    """Where the first line begins that begins at byte `at` or later; the file's size when none does."""
    if at == 0:
        return 0
    file.seek(at - 1)
    passed = 0
    while chunk := file.read(_FIRST_READ):
        found = chunk.find(b"\n")
        if found >= 0:
            return at + passed + int(found)
        passed += len(chunk)
        _check_length(passed, path=path)
    return int(file.size())


def _check_length(length: int, *, path: str) -> None:
    if length > LONGEST_LINE:
        raise DataError(
            f"{path} has a line of more than {LONGEST_LINE} bytes, the limit; is it a text file?"
            " Set data.format, or break its lines"
        )
