"""Warming compiles every kernel that a run meets, so that no step waits for a compiler."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import hetero.kernels
from hetero.loops.warm import warm_kernels
from hetero.records import AdmissionSpec, Clock, EvictionSpec, Mode, Precision
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.runs import finish

WITH_POLICIES, IN_BF16 = " with policies", " in bf16"


def signatures() -> dict[str, int]:
    """How many forms of each kernel are compiled."""
    found = {}
    modules = [m for m in pkgutil.iter_modules(hetero.kernels.__path__) if not m.name.endswith("_triton")]
    for module in modules:
        loaded = importlib.import_module(f"hetero.kernels.{module.name}")
        for name, value in vars(loaded).items():
            if hasattr(value, "signatures"):
                found[f"{module.name}.{name}"] = len(value.signatures)
    return found


def check(folder: Path, window: int, mode: str) -> None:
    data = data_spec(write_data(folder / "a.parquet", rows=3000, seed=0))
    precision = Precision.BF16 if mode.endswith(IN_BF16) else Precision.FP32
    plain = Mode(mode.removesuffix(WITH_POLICIES).removesuffix(IN_BF16))
    job = small_job(data, window=window, mode=plain, staleness=2, precision=precision)
    if mode.endswith(WITH_POLICIES):
        admission, eviction = AdmissionSpec(score=0.3, forget_days=1), EvictionSpec(expire_days=1)
        groups = tuple(replace(group, admission=admission, eviction=eviction) for group in job.groups)
        job = replace(job, groups=groups, clock=Clock(day_steps=10))
    warm_kernels(job)
    warmed = signatures()
    finish(job, in_process=True, score=True)
    assert signatures() == warmed


@pytest.mark.parametrize(
    ("mode", "window"),
    [
        ("sync", 4),
        pytest.param("sync" + IN_BF16, 4, marks=pytest.mark.slow),
        *(pytest.param("sync" + WITH_POLICIES, window, marks=pytest.mark.slow) for window in (0, 4)),
        *(pytest.param(mode, 0, marks=pytest.mark.slow) for mode in ("sync", "bounded", "async", "geo")),
    ],
)
def test_nothing_is_compiled_after_warming(tmp_path: Path, mode: str, window: int) -> None:
    """In a process of its own: here other tests may have compiled anything before."""
    here = "import sys; from pathlib import Path; from tests.unit.loops.test_warm import check"
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{here}; check(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])",
            str(tmp_path),
            str(window),
            mode,
        ],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
