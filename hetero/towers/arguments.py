"""Checks of the arguments job files give to built-in towers; errors name the argument and the value."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TypeVar

from hetero.errors import TowerError

Choice = TypeVar("Choice", bound=Enum)


def sizes(argument: str, value: object) -> tuple[int, ...]:
    """A list of positive layer sizes, possibly empty. Raises TowerError for anything else."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TowerError(f"{argument} must be a list of layer sizes such as [64, 32], got {value!r}")
    return tuple(positive(f"{argument}[{index}]", size) for index, size in enumerate(value))


def positive(argument: str, value: object) -> int:
    """An integer of at least 1. Raises TowerError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise TowerError(f"{argument} must be a whole number of at least 1, got {value!r}")
    return value


def probability(argument: str, value: object) -> float:
    """A number in [0, 1). Raises TowerError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise TowerError(f"{argument} must be a number from 0 up to but not 1, got {value!r}")
    return float(value)


def choice(argument: str, value: object, kinds: type[Choice]) -> Choice:
    """The member of `kinds` with that value. Raises TowerError with all of them."""
    for kind in kinds:
        if value == kind.value:
            return kind
    raise TowerError(f"{argument} must be one of {', '.join(str(kind.value) for kind in kinds)}, got {value!r}")
