"""Overrides from the command line, `--set tables[1].dim=32`, put over what a job file says."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hetero.errors import JobError
from pipelines.job_yaml import parse_value
from pipelines.problems import Path, path_text

_PART = re.compile(r"(?:^|\.)([A-Za-z_][A-Za-z0-9_\-]*)|\[(\d+)\]")


def apply_overrides(
    raw: Mapping[Any, Any], overrides: Sequence[str], *, origins: Mapping[Path, str]
) -> tuple[dict[Any, Any], dict[Path, str]]:
    """`raw` with every `path=VALUE` put in, later ones over earlier ones, and where each value now comes from.

    Names need not exist yet: the job refuses wrong ones, with the nearest right one. Raises JobError when an override
    cannot be read, or its path goes through something that has no such part.
    """
    result = copy.deepcopy(dict(raw))
    sources = dict(origins)
    for override in overrides:
        path, value = parse_override(override)
        _put(result, path, value, override)
        for known in [known for known in sources if known[: len(path)] == path]:
            del sources[known]
        for length in range(1, len(path)):
            sources.setdefault(path[:length], f"from --set {override}")
        sources[path] = f"from --set {override}"
    return result, sources


def parse_override(override: str) -> tuple[Path, object]:
    """The path and the value of `a.b[0].c=VALUE`; the value is YAML. Raises JobError when it cannot be read."""
    text, equals, value = override.partition("=")
    if not equals:
        raise JobError(f"--set {override}: has no value; write it as --set train.batch_size=8192")
    path: list[str | int] = []
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            break
        path.append(match[1] if match[1] is not None else int(match[2]))
        position = match.end()
    if position < len(text) or not path or isinstance(path[0], int):
        raise JobError(f"--set {override}: `{text}` is no path; write it as train.batch_size or tables[1].dim")
    return tuple(path), parse_value(value, source=f"--set {override}")


def _put(root: dict[Any, Any], path: Path, value: object, override: str) -> None:
    here: Any = root
    for depth, part in enumerate(path):
        last = depth == len(path) - 1
        above = path_text(path[:depth])
        if isinstance(part, int):
            if not isinstance(here, list):
                raise JobError(f"--set {override}: `{above}` is no list, so `{above}[{part}]` does not exist")
            if part >= len(here):
                raise JobError(
                    f"--set {override}: `{above}` has {len(here)} entries, numbered from 0; to add one, set the "
                    f"whole list"
                )
        elif not isinstance(here, dict):
            kind = "a list; choose an entry by its number" if isinstance(here, list) else f"`{here}`, no mapping"
            raise JobError(f"--set {override}: `{above}` is {kind}, so `{path_text(path[: depth + 1])}` is no name")
        elif not last and here.get(part) is None:
            here[part] = {}
        if last:
            here[part] = value
        else:
            here = here[part]
