"""The probe: limits of containers and of the process count, both cgroup versions, and the real machine is sane."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from hetero.hardware.probe import library_versions, peak_rss_bytes, probe_machine, usable_cores

CPUINFO = """processor\t: 0
model name\t: Fast CPU
flags\t\t: fpu avx2 fma avx512f amx_bf16 unknown

processor\t: 1
model name\t: Fast CPU
flags\t\t: fpu
"""


def fake_root(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/cpuinfo": CPUINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_real_machine() -> None:
    machine = probe_machine()
    assert 0 < machine.cores <= machine.machine_cores == os.cpu_count()
    assert 0 < machine.available_bytes <= machine.memory_bytes <= psutil.virtual_memory().total
    assert machine.disk_free_bytes > 0
    assert machine.cpu_model
    record = machine.to_dict()
    assert record["cores"] == machine.cores
    assert isinstance(record["accelerators"], (list, tuple))


def test_cpu_flags_are_those_that_matter_in_our_names(tmp_path: Path) -> None:
    machine = probe_machine(root=fake_root(tmp_path, {}))
    assert machine.cpu_model == "Fast CPU"
    assert machine.cpu_flags == ("avx2", "fma", "avx512", "amx_bf16")


def test_a_quota_of_cgroup_v2_counts_and_that_of_a_parent_too(tmp_path: Path) -> None:
    root = fake_root(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/cpu.max": "50000 100000\n",
        },
    )
    assert usable_cores(root=root) == 0.5


def test_a_quota_of_cgroup_v1(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct/box"
    root = fake_root(
        tmp_path,
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/box\n3:memory:/\n",
            f"{folder}/cpu.cfs_quota_us": "25000\n",
            f"{folder}/cpu.cfs_period_us": "100000\n",
        },
    )
    assert usable_cores(root=root) == 0.25
    (root / folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert usable_cores(root=root) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("group", "folder", "names"),
    [
        ("0::/box\n", "sys/fs/cgroup/box", ("memory.max", "memory.current", "inactive_file")),
        (
            "3:memory:/box\n",
            "sys/fs/cgroup/memory/box",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
)
def test_a_memory_limit_cuts_both_total_and_available(
    group: str, folder: str, names: tuple[str, str, str], tmp_path: Path
) -> None:
    limit, used, cache = names
    root = fake_root(
        tmp_path,
        {
            "proc/self/cgroup": group,
            f"{folder}/{limit}": "1000000\n",
            f"{folder}/{used}": "700000\n",
            f"{folder}/memory.stat": f"anon 500000\n{cache} 100000\n",
        },
    )
    machine = probe_machine(root=root)
    assert (machine.memory_bytes, machine.available_bytes) == (1_000_000, 400_000)
    (root / folder / limit).write_text("max\n" if limit == "memory.max" else f"{(1 << 63) - 4096}\n")
    assert probe_machine(root=root).memory_bytes == psutil.virtual_memory().total


def test_affinity_counts() -> None:
    one = min(os.sched_getaffinity(0))
    script = (
        f"import os; os.sched_setaffinity(0, {{{one}}}); "
        "from hetero.hardware.probe import usable_cores; print(usable_cores())"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True, timeout=60
    )
    assert float(done.stdout) <= 1.0


def test_peak_memory_grows_with_what_was_touched_and_stays() -> None:
    before = peak_rss_bytes()
    block = np.ones(64 << 20, np.uint8)
    assert block[-1] == 1
    del block
    after = peak_rss_bytes()
    now = psutil.Process().memory_info().rss
    assert after >= now - (8 << 20)
    assert after >= before
    assert after >= 64 << 20


def test_versions_name_the_libraries_that_are_installed() -> None:
    versions = library_versions()
    assert versions["numpy"] == np.__version__
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"torch", "pyarrow", "numba"} <= versions.keys()
