"""The doctor: every check can fail, says why and what to do, and a sound machine passes."""

from __future__ import annotations

import importlib.metadata
import io
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hetero.hardware.probe import Accelerator, Machine, probe_machine
from pipelines import doctor
from pipelines.doctor import Check, Diagnosis, Status, diagnose, show


@pytest.fixture(scope="module")
def machine() -> Machine:
    return probe_machine()


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_this_installation_is_sound_and_ray_is_asked_once() -> None:
    asked = []

    def start() -> str:
        asked.append(1)
        return "Ray 9, one task ran"

    diagnosis = diagnose(start_ray=start)
    assert asked == [1]
    assert diagnosis.healthy, [check for check in diagnosis.checks if check.status is Status.FAIL]
    names = [check.name for check in diagnosis.checks]
    assert {"python", "torch", "ray", "numba", "cores", "memory", "shared memory", "disk", "kernel cache"} <= {*names}
    assert len(names) == len(set(names))
    record = diagnosis.to_dict()
    assert record["healthy"] is True
    assert {"name": "ray starts", "status": "ok", "detail": "Ray 9, one task ran", "remedy": ""} in record["checks"]  # type: ignore[operator]


def test_ray_that_does_not_start_is_a_failure_with_a_way_out() -> None:
    def start() -> str:
        raise RuntimeError("no room in /dev/shm")

    check = doctor.check_ray(start)
    assert (check.status, check.detail) == (Status.FAIL, "no room in /dev/shm")
    assert "--in-process" in check.remedy


def test_an_old_python_fails() -> None:
    assert doctor.check_python("3.10.2").status is Status.FAIL
    assert "Python >=3.11" in doctor.check_python("3.10.2").remedy
    assert doctor.check_python("3.12.0rc1").status is Status.OK


def test_libraries_missing_or_out_of_range_fail_with_the_command_that_mends(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name == "numba":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0" if name == "pyarrow" else real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    checks = by_name(list(doctor.check_libraries()))
    assert (checks["numba"].status, checks["numba"].detail) == (Status.FAIL, "not installed (>=0.61)")
    assert (checks["pyarrow"].status, checks["pyarrow"].detail) == (Status.FAIL, "1.0 (>=16)")
    assert "pip install 'pyarrow>=16'" in checks["pyarrow"].remedy
    assert checks["numpy"].status is Status.OK
    assert "pytest" not in checks


def test_a_checkout_that_is_not_installed_is_checked_against_its_project_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    monkeypatch.setattr(importlib.metadata, "metadata", missing)
    assert {"numpy", "ray", "typer"} <= by_name(list(doctor.check_libraries())).keys()
    assert doctor.check_python().status is Status.OK


def test_a_small_machine_is_warned_about(machine: Machine) -> None:
    small = replace(
        machine,
        cores=0.5,
        available_bytes=1 << 30,
        memory_bytes=1 << 30,
        shared_memory_bytes=64 << 20,
        shared_memory_free_bytes=64 << 20,
        disk_free_bytes=1 << 30,
    )
    checks = by_name(list(doctor.check_machine(small)))
    assert {check.status for check in checks.values()} == {Status.WARN}
    assert all(check.remedy for check in checks.values())
    assert checks["shared memory"].detail == "64.0 MiB free of 64.0 MiB in /dev/shm"
    assert "--shm-size" in checks["shared memory"].remedy


def test_a_kernel_cache_that_cannot_be_written_is_warned_about(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "not" / "yet"))
    assert doctor.check_kernel_cache().status is Status.OK
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    check = doctor.check_kernel_cache()
    assert check.status is Status.WARN
    assert "NUMBA_CACHE_DIR" in check.remedy


def test_accelerators_are_listed(machine: Machine) -> None:
    card = Accelerator(kind="cuda", index=0, name="Card", memory_bytes=80 << 30)
    assert doctor.check_accelerators(replace(machine, accelerators=(card,))).detail == "Card (cuda:0, 80.0 GiB)"
    assert doctor.check_accelerators(replace(machine, accelerators=())).status is Status.OK


def test_what_is_shown(machine: Machine) -> None:
    good = Check(name="cores", status=Status.OK, detail="2")
    bad = Check(name="ray", status=Status.FAIL, detail="[not] installed", remedy="make install")

    def text(*checks: Check) -> str:
        console = Console(file=io.StringIO(), width=80, color_system=None)
        console.print(show(Diagnosis(checks=checks, machine=machine)))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    assert "Nothing is missing" in text(good)
    assert "What to do\n  ray: make install" in text(good, bad)
    assert "FAIL  ray    [not] installed" in text(good, bad)
    assert not Diagnosis(checks=(good, bad), machine=machine).healthy
