"""An actor that answers once it may; in a module that worker processes can import."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import ray

from hetero.errors import LeaseError

LIMIT_S = 20.0


class Gated:
    """Answers once it may."""

    def __init__(self) -> None:
        self._may = threading.Event()

    @ray.method(concurrency_group="control")
    def allow(self) -> None:
        self._may.set()

    def rows(self) -> Any:
        assert self._may.wait(LIMIT_S)
        return np.arange(100_000)

    def refuse(self) -> None:
        raise LeaseError("row 7 is held by nobody")
