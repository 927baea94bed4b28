"""YAML in and out: YAML 1.2's plain scalars, no name twice in a mapping, and errors and names with their lines.

By YAML 1.1, which the library follows otherwise, `no` is false, `1e-3` is text and `012` is ten.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

import yaml

from hetero.errors import JobError
from pipelines.problems import Path, path_text

_PLAIN_SCALARS = (
    ("tag:yaml.org,2002:null", r"^(?:~|null|Null|NULL|)$", "~nN"),
    ("tag:yaml.org,2002:bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("tag:yaml.org,2002:int", r"^(?:[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+)$", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+0123456789.",
    ),
    ("tag:yaml.org,2002:merge", r"^(?:<<)$", "<"),
)
_LINE_ENDS = re.compile("[\r\x85\u2028\u2029]")


class _Loader(yaml.SafeLoader):
    """Reads plain scalars as YAML 1.2 does."""


class _Dumper(yaml.SafeDumper):
    """Quotes what `_Loader` would not read back as text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node)).replace("_", "")
    return int(text, 0) if text.startswith(("0o", "0x")) else int(text)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Line ends other than a newline are escaped: in any other style they would be read back as a space."""
    style = '"' if _LINE_ENDS.search(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Loader.yaml_implicit_resolvers = {}
_Dumper.yaml_implicit_resolvers = {}
for _tag, _pattern, _firsts in _PLAIN_SCALARS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, re.compile(_pattern), list(_firsts) + ([""] if "null" in _tag else []))
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Dumper.add_representer(str, _text)


def read_yaml(
    path: FilePath, *, what: str = "job file", example: str = "examples/movielens.yaml"
) -> tuple[dict[Any, Any], dict[Path, str]]:
    """The mapping in a YAML file, and where each of its values was written: {("tables", 1, "dim"): "line 12"}.

    what, example: for messages. Raises JobError when the file cannot be read, is no YAML, names something twice, or is
    no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise JobError(f"{path}: the {what} cannot be read ({reason})") from error
    value, lines = _parse(text, source=str(path))
    if not isinstance(value, dict):
        found = "is empty" if value is None else f"holds a {type(value).__name__}"
        raise JobError(f"{path}: {found}; a {what} is a mapping of names to values, see {example}")
    return value, lines


def parse_value(text: str, *, source: str) -> object:
    """One YAML value, such as that of an override. Raises JobError naming `source`."""
    return _parse(text, source=source)[0]


def dump_yaml(value: object) -> str:
    """`value`, of plain mappings, lists and scalars, as YAML in its own order; the innermost lists in one line."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)


def _parse(text: str, *, source: str) -> tuple[object, dict[Path, str]]:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, {}
        lines = dict(_lines(node, (), source, ()))
        return loader.construct_document(node), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise JobError(f"{source}{place}: no valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise JobError(f"{source}: no valid YAML: {error}") from error
    finally:
        loader.dispose()


def _lines(node: yaml.Node, path: Path, source: str, above: tuple[int, ...]) -> Iterator[tuple[Path, str]]:
    """Path and line of every value under `node`; refuses names given twice and a value inside itself."""
    if id(node) in above:
        raise JobError(f"{source}, line {node.start_mark.line + 1}: `{path_text(path)}` contains itself")
    above = (*above, id(node))
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            yield (*path, number), f"line {item.start_mark.line + 1}"
            yield from _lines(item, (*path, number), source, above)
    if isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag.endswith(":merge"):
                continue
            name, line = str(key.value), key.start_mark.line + 1
            if name in first:
                raise JobError(
                    f"{source}, line {line}, column {key.start_mark.column + 1}: "
                    f"`{path_text((*path, name))}` is given twice, first in line {first[name]}"
                )
            first[name] = line
            yield (*path, name), f"line {line}"
            yield from _lines(value, (*path, name), source, above)
