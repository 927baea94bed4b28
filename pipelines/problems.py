"""Errors of a job for people: every one with its path, its value and limit, and the nearest right name."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hetero.errors import JobError

Path = tuple[str | int, ...]

MOST_LISTED = 12
KINDS = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "dict_type": "a mapping of names to values",
    "model_type": "a mapping of names to values",
    "model_attributes_type": "a mapping of names to values",
    "tuple_type": "a list",
    "list_type": "a list",
}
LIMITS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a job: the path of the field, such as ("tables", 1, "dim"), and what is wrong."""

    path: Path
    message: str


class ListedJobError(JobError):
    """Everything wrong with one job. The message has a line each, beginning with the field's path."""

    def __init__(self, message: str, *, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


def job_problems(problems: Sequence[Problem], *, origins: Mapping[Path, str] | None = None) -> ListedJobError:
    """One error of many problems. origins: where a field was written, such as `line 12`, by its path."""
    lines = []
    for problem in problems:
        origin = _origin(problem.path, origins or {})
        path = path_text(problem.path)
        lines.append((f"{path}: " if path else "") + problem.message + (f" ({origin})" if origin else ""))
    return ListedJobError("\n".join(dict.fromkeys(lines)), problems=problems)


def path_text(path: Iterable[str | int]) -> str:
    """A path as people write it: `tables[1].dim`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a message about a name that does not exist: the nearest one that does, and all there are."""
    known = list(names)
    near = get_close_matches(name, known, n=1) or [
        k for k in known if name and k.casefold().startswith(name.casefold())
    ]
    hint = f"; did you mean `{near[0]}`?" if near else ""
    listed = ", ".join(known[:MOST_LISTED]) + (f" and {len(known) - MOST_LISTED} more" if known[MOST_LISTED:] else "")
    return f"{hint} (one of: {listed})" if known else f"{hint} (there are none)"


def translate(error: ValidationError, *, model: type[BaseModel], raw: object) -> list[Problem]:
    """What pydantic found wrong with `raw`, the input of `model`, in this module's words."""
    return [_translate_one(details, model, raw) for details in error.errors(include_url=False)]


def _translate_one(details: ErrorDetails, model: type[BaseModel], raw: object) -> Problem:
    loc, kind, got = details["loc"], details["type"], details["input"]
    context = details.get("ctx", {})
    path = _without_tags(loc, raw)
    if kind == "extra_forbidden":
        name = str(path[-1])
        return Problem(path, f"unknown name `{name}`{nearest(name, _names_at(model, loc[:-1]))}")
    if kind == "missing":
        return Problem(path, "is required")
    if kind in ("enum", "literal_error"):
        return Problem(path, _unknown_value(got, _values(str(context.get("expected", "")))))
    if kind == "union_tag_invalid":
        field = str(context["discriminator"]).strip("'")
        return Problem((*path, field), _unknown_value(context["tag"], _values(str(context["expected_tags"]))))
    if kind == "union_tag_not_found":
        return Problem((*path, str(context["discriminator"]).strip("'")), "is required")
    if kind in KINDS:
        return Problem(path, f"must be {KINDS[kind]}, got {_shown(got)}")
    if kind in LIMITS:
        key, words = LIMITS[kind]
        return Problem(path, f"must be {words} {context[key]:g}, got {_shown(got)}")
    if kind == "too_short":
        least = context["min_length"]
        return Problem(path, f"must have at least {least} {'entry' if least == 1 else 'entries'}")
    if kind == "string_pattern_mismatch":
        return Problem(path, f"may hold letters, digits, `_`, `-` and `.` only, got {_shown(got)}")
    if kind == "value_error":
        return Problem(path, str(context["error"]))
    return Problem(path, f"{details['msg']}, got {_shown(got)}")


def _unknown_value(got: object, known: list[str]) -> str:
    return f"unknown value {_shown(got)}{nearest(str(got), known)}"


def _values(listing: str) -> list[str]:
    """The names in pydantic's listing `'a', 'b' or 'c'`."""
    return [part.strip().strip("'") for part in listing.replace(" or ", ", ").split(",") if part.strip()]


def _shown(value: object) -> str:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    text = f"`{value}`" if isinstance(value, str) else str(value)
    return f"{text} (text)" if isinstance(value, str) and value.replace(".", "", 1).isdigit() else text


def _without_tags(loc: Path, raw: object) -> Path:
    """The path without the names of union members that pydantic puts into it: parts that the input lacks."""
    path: list[str | int] = []
    here = raw
    for number, part in enumerate(loc):
        last = number == len(loc) - 1
        if isinstance(part, int):
            here = here[part] if isinstance(here, (list, tuple)) and part < len(here) else None
        elif isinstance(here, Mapping) and part in here:
            here = here[part]
        elif isinstance(here, BaseModel) and part in type(here).model_fields:
            here = getattr(here, part)
        elif not last:
            continue
        path.append(part)
    return tuple(path)


def _names_at(model: type[BaseModel], loc: Path) -> list[str]:
    """Names that a mapping at `loc` inside `model` may have, as they are written in a job file."""
    models: list[type[BaseModel]] = [model]
    for part in loc:
        if isinstance(part, int):
            continue
        tagged = [m for m in models if _tag(m) == part]
        models = tagged or [inner for m in models for inner in _models_of(m, part)]
    return list(dict.fromkeys(name for m in models for name in field_names(m)))


def field_names(model: type[BaseModel]) -> dict[str, str]:
    """Names of a section's fields as they are written in a job file, and the attributes they become."""
    return {field.alias or name: name for name, field in model.model_fields.items()}


def _tag(model: type[BaseModel]) -> str | None:
    field = model.model_fields.get("name")
    values = typing.get_args(field.annotation) if field is not None else ()
    return values[0] if len(values) == 1 and isinstance(values[0], str) else None


def _models_of(model: type[BaseModel], name: str) -> list[type[BaseModel]]:
    attribute = field_names(model).get(name)
    return [] if attribute is None else models_in(model.model_fields[attribute].annotation)


def models_in(annotation: object) -> list[type[BaseModel]]:
    """The sections a field of this type may hold."""
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [found for inner in typing.get_args(annotation) for found in models_in(inner)]


def _origin(path: Path, origins: Mapping[Path, str]) -> str | None:
    for length in range(len(path), 0, -1):
        if path[:length] in origins:
            return origins[path[:length]]
    return None
