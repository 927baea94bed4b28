"""Compiled code is kept between processes, and is left behind when any kernel's source changes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hetero

INNER = """
from hetero.kernels.jit import inline

@inline
def inner(x):
    return x + {added}
"""
OUTER = """
from hetero.kernels.inner import inner
from hetero.kernels.jit import kernel

@kernel
def outer(x):
    return inner(x)
"""
ASK = "from hetero.kernels.outer import outer; print(outer(40), sum(outer.stats.cache_hits.values()))"


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    ours = Path(hetero.__file__).parent / "kernels"
    kernels = tmp_path / "hetero" / "kernels"
    kernels.mkdir(parents=True)
    for folder in (kernels.parent, kernels):
        (folder / "__init__.py").touch()
    shutil.copy(ours / "jit.py", kernels)
    (kernels / "inner.py").write_text(INNER.format(added=1))
    (kernels / "outer.py").write_text(OUTER)
    return tmp_path


def ask(folder: Path) -> tuple[int, int]:
    """What outer(40) is, and how many kernels came from the cache."""
    ended = subprocess.run(
        [sys.executable, "-c", ASK], cwd=folder, capture_output=True, text=True, timeout=60, check=True
    )
    value, hits = ended.stdout.split()
    return int(value), int(hits)


def test_kept_between_processes_and_renewed_when_an_inlined_function_changes(copy: Path) -> None:
    assert ask(copy) == (41, 0)
    assert ask(copy) == (41, 1)
    (copy / "hetero" / "kernels" / "inner.py").write_text(INNER.format(added=2))
    assert ask(copy) == (42, 0)
