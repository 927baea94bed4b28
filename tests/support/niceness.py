"""An actor that tells how far its threads yield to others."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from actors.processes import work_ahead


class Worker:
    def __init__(self, *, ahead: bool) -> None:
        self._before = os.getpriority(os.PRIO_PROCESS, 0)
        if ahead:
            work_ahead()

    def niceness(self) -> tuple[int, set[int]]:
        """(what it was, that of every thread there is and of a new one)."""
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(os.getpriority(os.PRIO_PROCESS, 0)))
        thread.start()
        thread.join()
        tasks = [int(task.name) for task in Path("/proc/self/task").iterdir()]
        return self._before, {*found, *(os.getpriority(os.PRIO_PROCESS, task) for task in tasks)}
