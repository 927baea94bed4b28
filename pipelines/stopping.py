"""Ctrl-C and SIGTERM while training: the first asks for a snapshot and a clean end, a second one ends at once."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

from hetero.errors import StoppedError

_LOG = logging.getLogger(__name__)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """While inside, Ctrl-C and SIGTERM are noted: `asked()` says so. They are raised as StoppedError when they come
    again, and when the block is not left within `deadline_s` seconds of the first.

    Outside the main thread, which alone may handle signals, nothing is changed.
    """

    def __init__(self, *, deadline_s: float, told: Callable[[str], None] = _LOG.warning) -> None:
        self._deadline_s = deadline_s
        self._told = told
        self._signal: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}
        self._timer: threading.Timer | None = None
        self._late = False

    def asked(self) -> bool:
        """Whether the run is to stop."""
        return self._signal is not None

    def error(self, message: str) -> StoppedError:
        """The error with which a stopped run ends: its exit code is that of the signal."""
        return StoppedError(message, exit_code=128 + int(self._signal or signal.SIGINT))

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal gave

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._signal is None:
            self._signal = signal.Signals(number)
            self._told(f"{self._signal.name}: taking a snapshot, then ending; once more ends at once")
            self._timer = threading.Timer(self._deadline_s, self._end_late)
            self._timer.daemon = True
            self._timer.start()
            return
        if self._late:
            raise self.error(
                f"stopped by {self._signal.name}: no snapshot within {self._deadline_s:g} s (run.stop_deadline_s); "
                "`hetero resume` goes on from the one before, if there is one"
            )
        raise self.error(f"stopped by {signal.Signals(number).name} before the snapshot was whole")

    def _end_late(self) -> None:
        self._late = True
        os.kill(os.getpid(), signal.SIGTERM)
