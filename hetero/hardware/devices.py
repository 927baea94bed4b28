"""Known devices and links, for plans without the machine at hand. What was measured (`hetero probe`) comes first.

Rates are data sheet peaks, dense: FLOP/s = floating point operations a second, multiply and add counted as two. Bytes
a second of a link are one direction. Latencies are assumptions where no data sheet has them, and say so.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from hetero.errors import PlanError

_GB = 10**9
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, or one CPU socket.

    half_flops: FLOP/s of matrix products in fp16 with fp32 sums, and in bf16 where has_bf16. single_flops: FLOP/s in
    fp32 without tensor cores. memory_bytes_per_s: of its own memory. source: the data sheet.
    """

    name: str
    half_flops: float
    single_flops: float
    memory_bytes: int
    memory_bytes_per_s: float
    source: str
    has_bf16: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What carries bytes between two devices: alpha-beta, latency_s + bytes / bytes_per_s for a message."""

    name: str
    latency_s: float
    bytes_per_s: float
    source: str = ""

    def seconds(self, size_bytes: float) -> float:
        """Time of one message."""
        return self.latency_s + size_bytes / self.bytes_per_s

    def shared_by(self, users: float) -> Link:
        """The part of the link that each of several equal users gets."""
        return Link(name=self.name, latency_s=self.latency_s, bytes_per_s=self.bytes_per_s / users, source=self.source)


def _device(
    name: str,
    half_tf: float,
    single_tf: float,
    memory: int,
    memory_gb_s: float,
    source: str,
    *,
    has_bf16: bool = True,
) -> Device:
    return Device(
        name=name,
        half_flops=half_tf * 1e12,
        single_flops=single_tf * 1e12,
        memory_bytes=memory,
        memory_bytes_per_s=memory_gb_s * _GB,
        source=source,
        has_bf16=has_bf16,
    )


_NVIDIA = "NVIDIA data sheet, "
_DEVICES = (
    _device("t4", 65, 8.1, 16 * _GIB, 320, _NVIDIA + "Tesla T4", has_bf16=False),
    _device("v100-16gb", 125, 15.7, 16 * _GIB, 900, _NVIDIA + "V100 SXM2", has_bf16=False),
    _device("v100-32gb", 125, 15.7, 32 * _GIB, 900, _NVIDIA + "V100 SXM2", has_bf16=False),
    _device("a10", 125, 31.2, 24 * _GIB, 600, _NVIDIA + "A10"),
    _device("l4", 121, 30.3, 24 * _GIB, 300, _NVIDIA + "L4 (half rate without sparsity)"),
    _device("l40s", 362, 91.6, 48 * _GIB, 864, _NVIDIA + "L40S (half rate without sparsity)"),
    _device("a100-40gb", 312, 19.5, 40 * _GIB, 1555, _NVIDIA + "A100 40GB SXM"),
    _device("a100-80gb", 312, 19.5, 80 * _GIB, 2039, _NVIDIA + "A100 80GB SXM"),
    _device("h100", 989.4, 66.9, 80 * _GIB, 3350, _NVIDIA + "H100 SXM5 (half rate without sparsity)"),
    _device("h200", 989.4, 66.9, 141 * _GB, 4800, _NVIDIA + "H200 SXM (half rate without sparsity)"),
    # 20 cores x 2 AVX-512 units x 16 lanes x 2 operations x 1.6 GHz; fp16 has no faster instructions there.
    _device("xeon-6148", 2.05, 2.05, 192 * _GIB, 128, "Intel ARK, Xeon Gold 6148; AVX-512 base clock", has_bf16=False),
)

_RDMA = "line rate; latency assumed, 10 us with RDMA"
_TCP = "line rate; latency assumed, 50 us over TCP"
_LINKS = (
    Link(name="nvlink2", latency_s=5e-6, bytes_per_s=150 * _GB, source="6 x 25 GB/s (V100); latency assumed"),
    Link(name="nvlink3", latency_s=5e-6, bytes_per_s=300 * _GB, source="12 x 25 GB/s (A100); latency assumed"),
    Link(name="nvlink4", latency_s=5e-6, bytes_per_s=450 * _GB, source="18 x 25 GB/s (H100); latency assumed"),
    Link(name="pcie3", latency_s=1e-5, bytes_per_s=15.75 * _GB, source="16 lanes; latency assumed"),
    Link(name="pcie4", latency_s=1e-5, bytes_per_s=31.5 * _GB, source="16 lanes; latency assumed"),
    Link(name="pcie5", latency_s=1e-5, bytes_per_s=63 * _GB, source="16 lanes; latency assumed"),
    Link(name="ib-edr", latency_s=1e-5, bytes_per_s=12.5 * _GB, source="100 Gb/s " + _RDMA),
    Link(name="ib-hdr", latency_s=1e-5, bytes_per_s=25 * _GB, source="200 Gb/s " + _RDMA),
    Link(name="ib-ndr", latency_s=1e-5, bytes_per_s=50 * _GB, source="400 Gb/s " + _RDMA),
    Link(name="8x-ib-edr", latency_s=1e-5, bytes_per_s=100 * _GB, source="8 cards of 100 Gb/s " + _RDMA),
    Link(name="8x-ib-hdr", latency_s=1e-5, bytes_per_s=200 * _GB, source="8 cards of 200 Gb/s " + _RDMA),
    Link(name="8x-ib-ndr", latency_s=1e-5, bytes_per_s=400 * _GB, source="8 cards of 400 Gb/s " + _RDMA),
    Link(name="10gbe", latency_s=5e-5, bytes_per_s=1.25 * _GB, source=_TCP),
    Link(name="25gbe", latency_s=5e-5, bytes_per_s=3.125 * _GB, source=_TCP),
    Link(name="100gbe", latency_s=5e-5, bytes_per_s=12.5 * _GB, source=_TCP),
)

DEVICES: Mapping[str, Device] = {device.name: device for device in _DEVICES}
LINKS: Mapping[str, Link] = {link.name: link for link in _LINKS}

_Known = TypeVar("_Known", Device, Link)


def device(name: str) -> Device:
    """A known device. Raises PlanError for an unknown name, with the nearest."""
    return _known(DEVICES, name, "device")


def device_called(full_name: str) -> Device | None:
    """The data sheet of a device by the name its driver gives it, such as `NVIDIA A100-SXM4-80GB`; None if unknown."""
    words = set(re.split(r"[^a-z0-9]+", full_name.lower()))
    found = [name for name in DEVICES if set(name.split("-")) <= words]
    return DEVICES[max(found, key=len)] if found else None


def link(name: str) -> Link:
    """A known link. Raises PlanError for an unknown name, with the nearest."""
    return _known(LINKS, name, "link")


def _known(table: Mapping[str, _Known], name: str, what: str) -> _Known:
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, table, n=1)
    hint = f"; is it {near[0]}?" if near else ""
    raise PlanError(f"there is no {what} `{name}` in hetero/hardware/devices.py{hint} Known: {', '.join(table)}")
