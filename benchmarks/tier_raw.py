"""What a disk does without an engine: large writes, and preadv of single pages; parts of `benchmarks.tiers`."""

from __future__ import annotations

import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from hetero.embedding.ssd.layout import Layout
from hetero.embedding.ssd.rows import DEFAULT_THREADS, SsdRows

CHUNK = 4 << 20
PAGE = 4096


def raw_write(path: Path, bytes_: int) -> float:
    """Seconds to write a file of so many bytes, chunk after chunk, to the disk."""
    chunk = mmap.mmap(-1, CHUNK)
    chunk.write(os.urandom(CHUNK))
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
    started = time.perf_counter()
    os.posix_fallocate(file, 0, -(-bytes_ // CHUNK) * CHUNK)
    for start in range(0, bytes_, CHUNK):
        os.pwrite(file, chunk, start)
    os.fdatasync(file)
    seconds = time.perf_counter() - started
    os.close(file)
    return seconds


def raw_reads(
    store: SsdRows, pool: ThreadPoolExecutor, layout: Layout, random: np.random.Generator, *, rows: int
) -> float:
    """Seconds of one preadv of the page where each of as many random records begins, in the order of the files."""
    segments = [segment for segment in store.files if segment.records]
    counts = np.array([segment.records for segment in segments])
    of = np.sort(random.choice(len(segments), rows, p=counts / counts.sum()))
    positions = (random.random(rows) * counts[of]).astype(np.int64)
    offsets = (
        PAGE + positions // layout.per_chunk * layout.chunk_bytes + positions % layout.per_chunk * layout.record_bytes
    )
    order = np.lexsort((offsets, of))
    places = [(segments[int(of[at])].file, int(offsets[at]) // PAGE * PAGE) for at in order]

    def work(part: list[tuple[int, int]]) -> None:
        page = [mmap.mmap(-1, PAGE)]
        for file, offset in part:
            os.preadv(file, page, offset)

    size = -(-len(places) // DEFAULT_THREADS)
    parts = [places[start : start + size] for start in range(0, len(places), size)]
    started = time.perf_counter()
    list(pool.map(work, parts))
    return time.perf_counter() - started
