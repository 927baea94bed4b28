"""What a machine was measured to do: figures that make sense, and nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from hetero.hardware.rates import measure_disk, numa_nodes


def test_a_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    rates = measure_disk(tmp_path, size=4 << 20, reads=64)
    assert rates.path == str(tmp_path)
    assert rates.write_bytes_per_s > 1e5
    assert rates.read_bytes_per_s > 1e5
    assert rates.random_reads_per_s > 10
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="none"):
        measure_disk(tmp_path / "none")


def test_numa_nodes_are_those_that_linux_tells(tmp_path: Path) -> None:
    for number, cpus in ((0, "0-7"), (1, "8-15"), (10, "16")):
        folder = tmp_path / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus + "\n")
        (folder / "meminfo").write_text(f"Node {number} MemTotal:       {number + 1} kB\n")
    found = numa_nodes(root=tmp_path)
    assert [(node.number, node.cpus, node.memory_bytes) for node in found] == [
        (0, "0-7", 1024),
        (1, "8-15", 2048),
        (10, "16", 11 * 1024),
    ]
    assert numa_nodes(root=tmp_path / "none") == ()
