"""Bytes written in a thread of their own: in order, no more than the queue holds, and no failure goes unheard."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hetero.checkpoint import write_behind
from hetero.checkpoint.storage import Storage
from hetero.checkpoint.write_behind import WriteBehind
from hetero.errors import SnapshotError

_DEADLINE_S = 20


class SlowFile:
    """Takes bytes when it is let."""

    def __init__(self) -> None:
        self.data = b""
        self.let = threading.Event()

    def take(self, data: bytes) -> None:
        assert self.let.wait(_DEADLINE_S)
        self.data += data

    def complete(self) -> None:
        assert self.let.wait(_DEADLINE_S)
        self.data += b"."


class FullFile:
    def take(self, data: bytes) -> None:
        raise SnapshotError("the disk is full")

    def complete(self) -> None:
        raise SnapshotError("the disk is full")


def test_bytes_of_several_files_arrive_in_order() -> None:
    files = [SlowFile(), SlowFile()]
    with WriteBehind() as behind:
        for number in range(50):
            behind.put(files[number % 2], bytes([number]))
        assert [file.data for file in files] == [b"", b""]
        for file in files:
            file.let.set()
        behind.drain()
        assert [file.data for file in files] == [bytes(range(0, 50, 2)), bytes(range(1, 50, 2))]
        behind.put(files[0], b"end")
    assert files[0].data.endswith(b"end")


def test_a_file_is_completed_after_the_bytes_it_was_given() -> None:
    file, other = SlowFile(), SlowFile()
    with WriteBehind() as behind:
        behind.put(file, b"1")
        behind.end(file)
        behind.put(other, b"2")
        assert (file.data, other.data) == (b"", b"")
        file.let.set()
        other.let.set()
    assert (file.data, other.data) == (b"1.", b"2")


def test_who_puts_waits_while_the_queue_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_behind, "MOST_BYTES", 10)
    file, put = SlowFile(), threading.Event()

    def put_much() -> None:
        for _ in range(5):
            behind.put(file, b"12345")
        put.set()

    with WriteBehind() as behind:
        thread = threading.Thread(target=put_much)
        thread.start()
        assert not put.wait(0.2)
        file.let.set()
        assert put.wait(_DEADLINE_S)
        thread.join(_DEADLINE_S)
    assert file.data == b"12345" * 5


@pytest.mark.parametrize("heard", ["put", "drain", "leave", "leave the end"])
def test_a_failure_reaches_who_puts_next_drains_or_leaves(heard: str) -> None:
    behind = WriteBehind()

    def write() -> None:
        with behind:
            if heard == "leave the end":
                behind.end(FullFile())
            else:
                behind.put(FullFile(), b"1")
            while heard == "put":
                behind.put(FullFile(), b"2")
            if heard == "drain":
                behind.drain()

    with pytest.raises(SnapshotError, match="the disk is full"):
        write()
    assert not behind._thread.is_alive()


def test_what_waits_after_an_error_is_dropped() -> None:
    file, dropped = SlowFile(), SlowFile()
    dropped.let.set()

    def fail() -> None:
        with WriteBehind() as behind:
            behind.put(file, b"under way")
            behind.put(dropped, b"waits")
            threading.Timer(0.1, file.let.set).start()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert dropped.data == b""


def test_a_file_holds_what_went_through_the_thread(tmp_path: Path) -> None:
    storage, behind = Storage(tmp_path), WriteBehind()
    with storage.writing("a/b.bin", behind=behind) as sink, behind:
        for _ in range(100):
            sink.write(b"0123456789" * 10)
    assert (tmp_path / "a" / "b.bin").read_bytes() == b"0123456789" * 1000
    assert sink.written() == storage.write("again", b"0123456789" * 1000)
