"""Types of values in job files, and what every section of one is."""

from __future__ import annotations

import os
import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict

from hetero.errors import UserError

NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*$"
_SIZE = re.compile(r"([0-9]+) ?(KiB|MiB|GiB|TiB)")
_POWERS = {"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}


def _one_or_more(value: object) -> object:
    """A single path stands for a list of one, null for none; path objects are taken as their text."""
    if value is None:
        return ()
    if isinstance(value, (str, os.PathLike)):
        value = [value]
    if not isinstance(value, (list, tuple)):
        return value
    return [os.fspath(path) if isinstance(path, os.PathLike) else path for path in value]


def _bytes(value: object) -> object:
    """`8GiB` stands for 8 * 2^30."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    return value if match is None else int(match[1]) << _POWERS[match[2]]


def as_bytes(text: str, *, option: str) -> int:
    """`8GiB` or a number of bytes given on the command line. Raises UserError for anything else."""
    value = int(text) if text.isdecimal() else _bytes(text)
    if not isinstance(value, int):
        raise UserError(f"{option} {text}: is no size; give one such as 512MiB or 8GiB")
    return value


Text = Annotated[str, Strict(), Field(min_length=1)]
Name = Annotated[str, Strict(), Field(pattern=NAME)]
Flag = Annotated[bool, Strict()]
Count = Annotated[int, Strict(), Field(ge=1)]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Positive = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Strict(), Field(ge=0, le=1)]
Beta = Annotated[float, Strict(), Field(ge=0, lt=1)]
Bytes = Annotated[int, Strict(), BeforeValidator(_bytes)]
Paths = Annotated[tuple[Text, ...], BeforeValidator(_one_or_more)]


class Section(BaseModel):
    """Base of all sections: frozen, and strict about names."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
