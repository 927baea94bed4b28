"""Calls that change state, applied once: every caller numbers its calls to a server, and repeats are known by it."""

from __future__ import annotations

from dataclasses import dataclass

from hetero.errors import ProtocolError


@dataclass(slots=True)
class Lane:
    """The numbered calls of one kind from one tower. what: what such a call is called in errors."""

    what: str
    next_number: int = 0

    def is_next(self, number: int) -> bool:
        """Note a call; False when it was seen before. Raises ProtocolError on a gap."""
        if number > self.next_number:
            raise ProtocolError(f"server: {self.what} number {number} came, expected number {self.next_number}")
        if number < self.next_number:
            return False
        self.next_number += 1
        return True
