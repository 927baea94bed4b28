"""Looks at the machine this process runs on, and says what the process may use of it.

Limits of a container (cgroup v1 and v2) and of the process (CPU affinity) count, beside what the machine has.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

CPU_FLAGS = {
    "avx2": "avx2",
    "fma": "fma",
    "avx512f": "avx512",
    "avx512_bf16": "avx512_bf16",
    "amx_bf16": "amx_bf16",
    "amx_int8": "amx_int8",
    "asimd": "neon",
    "sve": "sve",
    "bf16": "bf16",
}
LIBRARIES = ("hetero", "numpy", "torch", "pyarrow", "numba", "psutil", "safetensors", "ray")
UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device torch can compute on beside the CPU. kind: torch's name for it, such as `cuda`."""

    kind: str
    index: int
    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a process may use of its machine.

    cores: CPUs, fractions too, the least of affinity and cgroup quota. machine_cores: those of the machine.
    memory_bytes: the least of installed memory and cgroup limits; available_bytes: of it free or reclaimable.
    shared_memory_bytes, shared_memory_free_bytes: of /dev/shm, 0 where there is none.
    disk_free_bytes: on the file system of `disk_path`. cpu_flags: instruction sets kernels and torch use.
    """

    hostname: str
    system: str
    cpu_model: str
    cpu_flags: tuple[str, ...]
    cores: float
    machine_cores: int
    memory_bytes: int
    available_bytes: int
    shared_memory_bytes: int
    shared_memory_free_bytes: int
    disk_path: str
    disk_free_bytes: int
    accelerators: tuple[Accelerator, ...]

    def to_dict(self) -> dict[str, object]:
        """The record as JSON holds it."""
        return asdict(self)


def probe_machine(*, disk_path: Path | None = None, root: Path = Path("/")) -> Machine:
    """Look at this machine. disk_path: whose file system to report (default: the current directory).

    root: where `proc` and `sys` are found; other values serve tests.
    """
    disk = Path.cwd() if disk_path is None else disk_path
    total, available = _memory(root)
    shared = shutil.disk_usage("/dev/shm") if Path("/dev/shm").is_dir() else None
    model, flags = cpu_model_and_flags(root=root)
    return Machine(
        hostname=platform.node(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu_model=model,
        cpu_flags=flags,
        cores=usable_cores(root=root),
        machine_cores=os.cpu_count() or 1,
        memory_bytes=total,
        available_bytes=available,
        shared_memory_bytes=shared.total if shared else 0,
        shared_memory_free_bytes=shared.free if shared else 0,
        disk_path=str(disk),
        disk_free_bytes=shutil.disk_usage(disk).free,
        accelerators=accelerators(),
    )


def cpu_model_and_flags(*, root: Path = Path("/")) -> tuple[str, tuple[str, ...]]:
    """Model name and, by the names of CPU_FLAGS' values, the instruction sets that the first CPU has."""
    model, flags = "", set[str]()
    for line in _read(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu model") and not model:
            model = value.strip()
        elif name.strip() in ("flags", "Features") and not flags:
            flags = set(value.split())
    return model or platform.processor() or platform.machine(), tuple(
        ours for theirs, ours in CPU_FLAGS.items() if theirs in flags
    )


def usable_cores(*, root: Path = Path("/")) -> float:
    """CPUs this process may use: the least of its affinity and its cgroup's quota."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for folder in _cgroup_folders(root, "cpu") if (quota := _cpu_quota(folder)) is not None]
    return min([float(affinity), *quotas])


def accelerators() -> tuple[Accelerator, ...]:
    """Devices of torch beside the CPU; empty on a machine without any."""
    import torch

    if not torch.accelerator.is_available():
        return ()
    kind = torch.accelerator.current_accelerator().type  # type: ignore[union-attr]
    module = torch.get_device_module(kind)
    found = []
    for index in range(torch.accelerator.device_count()):
        properties = module.get_device_properties(index) if hasattr(module, "get_device_properties") else None
        found.append(
            Accelerator(
                kind=kind,
                index=index,
                name=str(getattr(properties, "name", kind)),
                memory_bytes=int(getattr(properties, "total_memory", 0)),
            )
        )
    return tuple(found)


def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries results depend on; one that is not installed is left out."""
    versions = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            versions[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def peak_rss_bytes(*, root: Path = Path("/")) -> int:
    """Highest resident memory of this process so far, in bytes.

    Linux: VmHWM, since `ru_maxrss` of a forked and replaced process begins with its parent's.
    """
    status = _read(root / "proc/self/status")
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Folders of this process's cgroups that may limit `controller`, its ancestors included, v1 and v2."""
    mount = root / "sys/fs/cgroup"
    folders: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            base = mount
        elif controller in names.split(","):
            base = mount / controller if (mount / controller).is_dir() else mount / names
        else:
            continue
        own = base / path.strip("/")
        folders.extend(folder for folder in (own, *own.parents) if folder == base or base in folder.parents)
    return folders


def _cpu_quota(folder: Path) -> float | None:
    words = _read(folder / "cpu.max").split()
    if len(words) != 2:
        words = [_read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()]
    if not all(word.isdigit() for word in words) or int(words[0]) == 0 or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def _memory(root: Path) -> tuple[int, int]:
    """(limit, available) in bytes: the machine's, cut down to the tightest cgroup's."""
    table = psutil.virtual_memory()
    total, available = int(table.total), int(table.available)
    for folder in _cgroup_folders(root, "memory"):
        limit = _number(folder, "memory.max", "memory.limit_in_bytes")
        if limit is None or limit >= UNLIMITED_BYTES:
            continue
        used = _number(folder, "memory.current", "memory.usage_in_bytes") or 0
        reclaimable = _file_cache(folder)
        total = min(total, limit)
        available = min(available, max(0, limit - used + reclaimable))
    return total, available


def _number(folder: Path, *names: str) -> int | None:
    for name in names:
        text = _read(folder / name).strip()
        if text.isdigit():
            return int(text)
    return None


def _file_cache(folder: Path) -> int:
    for line in _read(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0
