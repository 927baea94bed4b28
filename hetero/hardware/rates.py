"""What a machine was measured to do: matrix products, memory, disks, and accelerators of any kind that torch has."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from hetero.hardware.matrix_rate import matrix_rate
from hetero.hardware.probe import accelerators
from hetero.hardware.timing import median_seconds

_FILE_BYTES = 128 << 20
_BLOCK = 1 << 20
_PAGE = 4096
_RANDOM_READS = 2000
_READERS = 8
_COPY_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """CPUs that share memory of their own. cpus: as Linux lists them, such as `0-7,16-23`."""

    number: int
    cpus: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRates:
    """Bytes a second of large reads and writes, single pages a second at random. direct: past the system's page cache;
    otherwise reads may have come from memory."""

    path: str
    write_bytes_per_s: float
    read_bytes_per_s: float
    random_reads_per_s: float
    direct: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorRates:
    """FLOP/s of matrix products, bytes a second of its own memory (read and written) and from the host's."""

    kind: str
    index: int
    name: str
    half_flops: float
    single_flops: float
    memory_bytes_per_s: float
    from_host_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRates:
    """half_flops, single_flops: of torch on all cores. memory_bytes_per_s: of one thread that copies."""

    single_flops: float
    half_flops: float
    memory_bytes_per_s: float
    numa: tuple[NumaNode, ...]
    disks: tuple[DiskRates, ...]
    accelerators: tuple[AcceleratorRates, ...]

    def to_dict(self) -> dict[str, object]:
        """The record as JSON holds it."""
        return asdict(self)


def measure_rates(*, disks: tuple[Path, ...]) -> MachineRates:
    """Measure this machine, some seconds for each disk. disks: a folder on each. Raises OSError for one that cannot be
    written."""
    cpu = torch.device("cpu")
    return MachineRates(
        single_flops=matrix_rate(cpu, torch.float32),
        half_flops=matrix_rate(cpu, torch.bfloat16),
        memory_bytes_per_s=_copy_rate(),
        numa=numa_nodes(),
        disks=tuple(measure_disk(folder) for folder in disks),
        accelerators=tuple(_accelerator(each.kind, each.index, each.name) for each in accelerators()),
    )


def numa_nodes(*, root: Path = Path("/")) -> tuple[NumaNode, ...]:
    """As Linux tells; empty elsewhere."""
    found = []
    for folder in sorted((root / "sys/devices/system/node").glob("node[0-9]*"), key=lambda each: int(each.name[4:])):
        with suppress(OSError, IndexError, ValueError):
            total = next(line for line in (folder / "meminfo").read_text().splitlines() if "MemTotal" in line)
            found.append(
                NumaNode(
                    number=int(folder.name[4:]),
                    cpus=(folder / "cpulist").read_text().strip(),
                    memory_bytes=int(total.split()[-2]) * 1024,
                )
            )
    return tuple(found)


def measure_disk(folder: Path, *, size: int = _FILE_BYTES, reads: int = _RANDOM_READS) -> DiskRates:
    """Write a file of `size` bytes in a folder, read it, read pages of it at random from 8 threads, remove it."""
    size -= size % _BLOCK
    descriptor, name = tempfile.mkstemp(prefix=".hetero-probe-", dir=folder)
    try:
        block = np.random.default_rng(0).bytes(_BLOCK)
        began = time.perf_counter()
        for _ in range(size // _BLOCK):
            os.write(descriptor, block)
        os.fsync(descriptor)
        write_s = time.perf_counter() - began
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        reader, direct = _open_direct(name)
        try:
            read_s = _timed(lambda: _read_blocks(reader, size))
            random_s = _timed(lambda: _read_pages(reader, size, reads))
        finally:
            os.close(reader)
        return DiskRates(
            path=str(folder),
            write_bytes_per_s=size / write_s,
            read_bytes_per_s=size / read_s,
            random_reads_per_s=reads / random_s,
            direct=direct,
        )
    finally:
        os.close(descriptor)
        os.unlink(name)


def _open_direct(name: str) -> tuple[int, bool]:
    """Not all file systems can."""
    flag = getattr(os, "O_DIRECT", 0)
    if flag:
        with suppress(OSError):
            return os.open(name, os.O_RDONLY | flag), True
    return os.open(name, os.O_RDONLY), False


def _aligned(size: int) -> memoryview:
    room = np.empty(size + _PAGE, np.uint8)
    first = -room.ctypes.data % _PAGE
    return room[first : first + size].data


def _read_blocks(descriptor: int, size: int) -> None:
    into = [_aligned(_BLOCK)]
    for start in range(0, size, _BLOCK):
        os.preadv(descriptor, into, start)


def _read_pages(descriptor: int, size: int, reads: int) -> None:
    pages = np.random.default_rng(1).integers(0, size // _PAGE, reads)

    def part(number: int) -> None:
        into = [_aligned(_PAGE)]
        for page in pages[number::_READERS]:
            os.preadv(descriptor, into, int(page) * _PAGE)

    with ThreadPoolExecutor(_READERS) as pool:
        list(pool.map(part, range(_READERS)))


def _copy_rate() -> float:
    """Bytes read and written a second."""
    source = np.ones(_COPY_BYTES, np.uint8)
    target = np.empty_like(source)
    return 2 * _COPY_BYTES / median_seconds(lambda: np.copyto(target, source))


def copy_rate(device: torch.device, *, size: int = _COPY_BYTES) -> float:
    """Bytes read and written a second in a device's own memory; of the host's, by torch's threads. size: of a copy."""
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / median_seconds(lambda: target.copy_(source), device=device)


def _accelerator(kind: str, index: int, name: str) -> AcceleratorRates:
    device = torch.device(kind, index)
    here = torch.ones(_COPY_BYTES, dtype=torch.uint8)
    target = here.to(device)
    return AcceleratorRates(
        kind=kind,
        index=index,
        name=name,
        half_flops=matrix_rate(device, torch.bfloat16),
        single_flops=matrix_rate(device, torch.float32),
        memory_bytes_per_s=copy_rate(device),
        from_host_bytes_per_s=_COPY_BYTES / median_seconds(lambda: target.copy_(here), device=device),
    )


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return max(time.perf_counter() - began, 1e-9)
