"""The import law of the design, as code: who may import whom, and what each offence is called.

Walks the syntax trees, so that imports inside functions, under TYPE_CHECKING, relative ones and
`importlib.import_module("literal")` count as well.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LEVELS: tuple[tuple[str, ...], ...] = (
    ("hetero.errors", "hetero.records"),
    ("hetero.kernels",),
    ("hetero.hardware", "hetero.observe", "hetero.metrics"),
    ("hetero.data", "hetero.keys", "hetero.optim", "hetero.towers"),
    ("hetero.embedding", "hetero.parallel", "hetero.serving"),
    ("hetero.exchange", "hetero.planning"),
    ("hetero.checkpoint",),
    ("hetero.loops",),
    ("actors",),
    ("pipelines",),
    ("examples",),
    ("benchmarks",),
)
LEVEL_OF = {package: level for level, packages in enumerate(LEVELS) for package in packages}
TREES = ("hetero", "actors", "pipelines", "examples", "benchmarks")
FORBIDDEN_NAMES = frozenset({"utils", "util", "common", "helpers", "helper"})
CORE_LIBRARIES = frozenset({"numpy", "torch", "triton", "pyarrow", "numba", "llvmlite", "psutil", "safetensors"})
SKIPPED_FOLDERS = frozenset({"__pycache__", "build", "dist", "runs"})


@dataclass(frozen=True, slots=True)
class Import:
    """One import as written: the module that imports, what it imports, and where."""

    file: Path
    line: int
    importer: str
    target: str


@dataclass(frozen=True, slots=True)
class Offence:
    """One breach of the law, as `file:line: a -> b, because ...`."""

    text: str

    def __str__(self) -> str:
        return self.text


def offences(root: Path) -> list[Offence]:
    """Everything in the repository at `root` that breaks the law."""
    found = [offence for tree in TREES for file in python_files(root / tree) for offence in _of_file(file, root)]
    return found + list(_forbidden_names(root))


def python_files(folder: Path) -> list[Path]:
    """All Python files under a folder, in order."""
    if not folder.is_dir():
        return []
    return sorted(file for file in folder.rglob("*.py") if not SKIPPED_FOLDERS.intersection(file.parts))


def imports_of(file: Path, root: Path) -> Iterator[Import]:
    """Every module a file imports, however late."""
    importer = ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    is_package = file.name == "__init__.py"
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), filename=str(file))):
        for target in _targets(node, importer, is_package, root):
            yield Import(file.relative_to(root), getattr(node, "lineno", 0), importer, target)


def _targets(node: ast.AST, importer: str, is_package: bool, root: Path) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = _absolute(node, importer, is_package)
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            yield inner if _is_module(inner, root) else base
    elif isinstance(node, ast.Call) and _name(node.func) in ("import_module", "__import__") and node.args:
        literal = node.args[0]
        if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
            yield literal.value


def _absolute(node: ast.ImportFrom, importer: str, is_package: bool) -> str:
    if node.level == 0:
        return node.module or ""
    parts = importer.split(".")
    kept = parts[: len(parts) - node.level + (1 if is_package else 0)]
    return ".".join([*kept, *([node.module] if node.module else [])])


def _is_module(name: str, root: Path) -> bool:
    path = root.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or path.is_dir()


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _of_file(file: Path, root: Path) -> Iterator[Offence]:
    for one in imports_of(file, root):
        reason = _why_not(one)
        if reason is not None:
            yield Offence(f"{one.file}:{one.line}: {one.importer} -> {one.target}, because {reason}")


def _why_not(one: Import) -> str | None:
    """What forbids an import, or None."""
    top = one.target.split(".")[0]
    importer_top = one.importer.split(".")[0]
    if top == "ray" and importer_top != "actors":
        return "ray is reached only through actors/"
    if top == "tests":
        return "nothing outside tests/ imports tests"
    if top in TREES:
        return _why_not_ours(one)
    if importer_top == "hetero" and top not in CORE_LIBRARIES and top not in sys.stdlib_module_names:
        return f"hetero/ needs {', '.join(sorted(CORE_LIBRARIES))} and the standard library only"
    return None


def _why_not_ours(one: Import) -> str | None:
    source, target = _package(one.importer), _package(one.target)
    if target == "hetero" or source == target:
        return None
    if source == "hetero":
        return "hetero/__init__.py is imported by every part of hetero and imports none"
    for package, module in ((source, one.importer), (target, one.target)):
        if package not in LEVEL_OF:
            return f"{module} belongs to no level of the design; add its package there first"
    if source == "examples" and target == "actors":
        return "examples import pipelines and hetero only"
    if LEVEL_OF[source] == LEVEL_OF[target]:
        return f"{source} and {target} are on one level, and packages on one level do not import each other"
    if LEVEL_OF[source] < LEVEL_OF[target]:
        return f"imports go one way and {source} is below {target}"
    return None


def _package(module: str) -> str:
    """The package of the design that a module belongs to: `hetero.data`, `actors`, ..."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "hetero" else parts[0]


def _forbidden_names(root: Path) -> Iterator[Offence]:
    for tree in (*TREES, "tests"):
        for file in python_files(root / tree):
            relative = file.relative_to(root)
            bad = [part for part in relative.with_suffix("").parts if part in FORBIDDEN_NAMES]
            if bad:
                yield Offence(f"{relative}:1: named `{bad[0]}`, because a helper lives with the type it serves")
