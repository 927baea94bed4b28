"""Looks at this machine and this installation, and says what is missing and what to do about it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hetero.hardware.probe import Machine, probe_machine
from pipelines.report import size

GIB = 1 << 30
PROJECT_FILE = Path(__file__).parent.parent / "pyproject.toml"


class Status(Enum):
    """OK: as it should be. WARN: works, with the limits said. FAIL: training will not work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing looked at. remedy: what to do, empty when nothing is to be done."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All checks of one machine."""

    checks: tuple[Check, ...]
    machine: Machine

    @property
    def healthy(self) -> bool:
        """Whether nothing failed; warnings do not count."""
        return all(check.status is not Status.FAIL for check in self.checks)

    def to_dict(self) -> dict[str, object]:
        """The record as JSON holds it."""
        return {
            "healthy": self.healthy,
            "checks": [{**asdict(check), "status": check.status.value} for check in self.checks],
            "machine": self.machine.to_dict(),
        }


def diagnose(*, start_ray: Callable[[], str] | None = None) -> Diagnosis:
    """Look at everything. start_ray: starts and stops a tiny Ray and says what answered; default, a real one."""
    machine = probe_machine()
    checks = [
        check_python(),
        *check_libraries(),
        *check_machine(machine),
        check_kernel_cache(),
        check_ray(start_ray or _start_ray),
        check_accelerators(machine),
    ]
    return Diagnosis(checks=tuple(checks), machine=machine)


def check_python(version: str | None = None) -> Check:
    """Whether Python is of the package's range."""
    version = version or platform.python_version()
    wanted = _python_range()
    good = SpecifierSet(wanted).contains(version, prereleases=True)
    return Check(
        name="python",
        status=Status.OK if good else Status.FAIL,
        detail=f"{version} at {sys.executable} ({wanted})",
        remedy="" if good else f"make the environment anew with Python {wanted}: make install PYTHON=python3.11",
    )


def check_libraries() -> Iterator[Check]:
    """Whether each library the package asks for is there, in its range."""
    for requirement in _requirements():
        wanted = str(requirement.specifier) or "any"
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            yield Check(
                name=requirement.name,
                status=Status.FAIL,
                detail=f"not installed ({wanted})",
                remedy=f"make install, or pip install '{requirement}'",
            )
            continue
        good = requirement.specifier.contains(version, prereleases=True)
        yield Check(
            name=requirement.name,
            status=Status.OK if good else Status.FAIL,
            detail=f"{version} ({wanted})",
            remedy="" if good else f"make install, or pip install '{requirement}'",
        )


def check_machine(machine: Machine) -> Iterator[Check]:
    """Cores, memory, shared memory and disk."""
    yield _at_least(
        "cores",
        machine.cores,
        2,
        f"{machine.cores:g} of {machine.machine_cores} usable, {machine.cpu_model} ({' '.join(machine.cpu_flags)})",
        "roles will take turns on one core; give the container or the process more CPUs",
    )
    yield _at_least(
        "memory",
        machine.available_bytes,
        2 * GIB,
        f"{size(machine.available_bytes)} available of {size(machine.memory_bytes)}",
        "Ray and four actors need about 2 GiB; end other programs, or train with --in-process",
    )
    yield _at_least(
        "shared memory",
        machine.shared_memory_free_bytes,
        GIB // 2,
        f"{size(machine.shared_memory_free_bytes)} free of {size(machine.shared_memory_bytes)} in /dev/shm",
        "Ray's object store lies there, or else on disk and slow; in a container: docker run --shm-size=2g",
    )
    yield _at_least(
        "disk",
        machine.disk_free_bytes,
        2 * GIB,
        f"{size(machine.disk_free_bytes)} free at {machine.disk_path}",
        "runs and data need room; free some, or work in another folder",
    )


def check_kernel_cache() -> Check:
    """Whether compiled kernels can be kept, so that only the first run waits for the compiler."""
    from hetero.kernels.jit import cache_base

    folder = cache_base()
    good = os.access(_existing(folder), os.W_OK)
    return Check(
        name="kernel cache",
        status=Status.OK if good else Status.WARN,
        detail=f"{folder}{'' if good else ' cannot be written'}",
        remedy="" if good else "every run will compile its kernels again; set NUMBA_CACHE_DIR to a folder of your own",
    )


def check_ray(start: Callable[[], str]) -> Check:
    """Whether Ray starts here and runs a task."""
    try:
        return Check(name="ray starts", status=Status.OK, detail=start())
    except Exception as error:
        return Check(
            name="ray starts",
            status=Status.FAIL,
            detail=str(error) or type(error).__name__,
            remedy="train with --in-process meanwhile; look into /tmp/ray/session_latest/logs",
        )


def check_accelerators(machine: Machine) -> Check:
    """What torch can compute on beside the CPU; none is fine."""
    found = [f"{one.name} ({one.kind}:{one.index}, {size(one.memory_bytes)})" for one in machine.accelerators]
    return Check(
        name="accelerators",
        status=Status.OK,
        detail=", ".join(found) or "none; towers compute on the CPU",
    )


def show(diagnosis: Diagnosis) -> RenderableType:
    """The checks as a table, and below it what to do."""
    table = Table(show_header=False, box=None, padding=(0, 1))
    marks = {Status.OK: "[green]ok[/]", Status.WARN: "[yellow]warn[/]", Status.FAIL: "[red]FAIL[/]"}
    for check in diagnosis.checks:
        table.add_row(marks[check.status], check.name, Text(check.detail))
    to_do = [check for check in diagnosis.checks if check.remedy]
    if not to_do:
        return Group(table, Text("Nothing is missing. Next: hetero demo", style="bold"))
    return Group(table, Text("What to do", style="bold"), *(Text(f"  {c.name}: {c.remedy}") for c in to_do))


def _at_least(name: str, have: float, wanted: float, detail: str, remedy: str) -> Check:
    good = have >= wanted
    return Check(name=name, status=Status.OK if good else Status.WARN, detail=detail, remedy="" if good else remedy)


def _existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _requirements() -> list[Requirement]:
    """What the installed package asks for; of a plain checkout, what its pyproject.toml says."""
    try:
        listed = importlib.metadata.requires("hetero") or []
    except importlib.metadata.PackageNotFoundError:
        listed = _project().get("dependencies", [])
    requirements = [Requirement(text) for text in listed]
    return [one for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]


def _python_range() -> str:
    try:
        return importlib.metadata.metadata("hetero")["Requires-Python"]
    except (importlib.metadata.PackageNotFoundError, KeyError):
        return str(_project().get("requires-python", ">=3.11"))


def _project() -> dict[str, list[str]]:
    if not PROJECT_FILE.is_file():
        return {}
    with PROJECT_FILE.open("rb") as file:
        project: dict[str, list[str]] = tomllib.load(file)["project"]
    return project


def _start_ray() -> str:
    from actors.context import check_ray as start

    return start()
