"""The import law holds on the real tree, and fails on every kind of planted violation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.import_law import offences, python_files

ROOT = Path(__file__).resolve().parents[2]


def test_the_tree_keeps_the_law() -> None:
    assert len(python_files(ROOT / "hetero")) > 10, "the walk found no files, so it would prove nothing"
    assert "\n".join(map(str, offences(ROOT))) == ""


def test_files_of_tests_have_names_of_their_own() -> None:
    """Of two with one name, pytest collects the first and fails on the second."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) > 100
    assert sorted({name for name in names if names.count(name) > 1}) == []


PLANTED = {
    "upward": ("hetero/data/reader.py", "import hetero.embedding.store\n", "hetero.data is below hetero.embedding"),
    "sideways": ("hetero/keys/dedup.py", "from hetero.data import hashing\n", "on one level"),
    "lowest level sideways": ("hetero/records.py", "from hetero.errors import HeteroError\n", "on one level"),
    "inside a function": (
        "hetero/data/reader.py",
        "def f() -> None:\n    from hetero.loops.tower import Tower\n",
        "hetero.data is below hetero.loops",
    ),
    "for types only": (
        "hetero/data/reader.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from actors import server\n",
        "hetero.data is below actors",
    ),
    "relative": ("hetero/data/reader.py", "from ..loops import tower\n", "below hetero.loops"),
    "relative from a package": ("hetero/data/__init__.py", "from ..loops import tower\n", "below hetero.loops"),
    "package from hetero": ("hetero/data/reader.py", "from hetero import loops\n", "below hetero.loops"),
    "import_module": (
        "hetero/data/reader.py",
        "import importlib\nx = importlib.import_module('hetero.loops.tower')\n",
        "below hetero.loops",
    ),
    "bare import_module": (
        "hetero/data/reader.py",
        "from importlib import import_module\nx = import_module('pipelines.job')\n",
        "below pipelines",
    ),
    "dunder import": ("hetero/data/reader.py", "x = __import__('pipelines.job')\n", "below pipelines"),
    "root imports a part": ("hetero/__init__.py", "from hetero.records import Batch\n", "imports none"),
    "ray in the core": ("hetero/loops/tower.py", "import ray\n", "only through actors/"),
    "ray in pipelines": ("pipelines/train.py", "def f():\n    from ray.util import metrics\n", "only through actors/"),
    "ray in benchmarks": ("benchmarks/scaling.py", "import ray.train\n", "only through actors/"),
    "pydantic in the core": ("hetero/records.py", "from pydantic import BaseModel\n", "standard library only"),
    "typer in the core": ("hetero/observe/a.py", "import typer\n", "standard library only"),
    "rich in the core": ("hetero/observe/a.py", "from rich.table import Table\n", "standard library only"),
    "yaml in the core": ("hetero/data/a.py", "import yaml\n", "standard library only"),
    "actors import pipelines": ("actors/server.py", "import pipelines.job\n", "actors is below pipelines"),
    "examples import actors": ("examples/own.py", "import actors.server\n", "pipelines and hetero only"),
    "anything imports tests": ("pipelines/a.py", "from tests.unit import oracle\n", "imports tests"),
    "a package of no level": ("hetero/data/a.py", "import hetero.extras.thing\n", "belongs to no level"),
    "utils file": ("hetero/data/utils.py", "", "a helper lives with the type it serves"),
    "helpers package": ("tests/helpers/__init__.py", "", "a helper lives with the type it serves"),
    "common package": ("actors/common/retry.py", "", "a helper lives with the type it serves"),
}


@pytest.mark.parametrize("case", PLANTED)
def test_planted_violation_is_found(case: str, tmp_path: Path) -> None:
    file, source, reason = PLANTED[case]
    plant(tmp_path, "hetero/loops/tower.py", "")
    plant(tmp_path, "hetero/data/hashing.py", "")
    plant(tmp_path, file, source)
    found = [str(offence) for offence in offences(tmp_path)]
    line = max(1, source.count("\n"))
    assert len(found) == 1, found
    assert found[0].startswith(f"{file}:{line}: ")
    assert reason in found[0]


def test_what_the_law_allows_is_not_an_offence(tmp_path: Path) -> None:
    plant(tmp_path, "hetero/__init__.py", "__version__ = '1'\n")
    plant(tmp_path, "hetero/records.py", "import numpy as np\nfrom dataclasses import dataclass\n")
    plant(tmp_path, "hetero/data/hashing.py", "import numba\nfrom hetero.records import Batch\nfrom . import other\n")
    plant(tmp_path, "hetero/data/other.py", "from hetero import __version__\n")
    plant(tmp_path, "actors/server.py", "import ray\nfrom hetero.data import hashing\n")
    plant(tmp_path, "pipelines/train.py", "import pydantic, typer, rich, yaml\nimport actors.server\n")
    plant(tmp_path, "benchmarks/kernels.py", "import actors.server\nimport examples.own\n")
    assert offences(tmp_path) == []


def test_core_imports_without_the_libraries_above_it() -> None:
    """`import hetero` and all its modules work where only the core's libraries are installed."""
    script = """
import importlib, importlib.abc, pkgutil, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"ray", "pydantic", "typer", "rich", "yaml", "xxhash"}:
            raise ModuleNotFoundError(f"No module named {name!r} (blocked)", name=name)
        return None

sys.meta_path.insert(0, Blocker())
import hetero
count = 0
for module in pkgutil.walk_packages(hetero.__path__, "hetero."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if error.name != "triton" or not module.name.endswith("_triton"):  # it comes with torch for CUDA alone
            raise
    count += 1
assert count > 10, count
try:
    import ray
except ModuleNotFoundError:
    print("blocked", count)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("blocked "), done.stdout


def plant(root: Path, file: str, source: str) -> None:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
