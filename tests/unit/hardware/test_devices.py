"""Devices by the names that drivers give them."""

from __future__ import annotations

import pytest

from hetero.hardware.devices import DEVICES, device_called


@pytest.mark.parametrize(
    ("full_name", "name"),
    [
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
    ],
)
def test_a_device_is_known_by_its_full_name(full_name: str, name: str) -> None:
    assert device_called(full_name) is DEVICES[name]


@pytest.mark.parametrize("full_name", ["", "NVIDIA GeForce RTX 4090", "AMD EPYC", "A100"])
def test_other_devices_have_no_data_sheet_here(full_name: str) -> None:
    assert device_called(full_name) is None
