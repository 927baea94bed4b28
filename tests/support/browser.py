"""A headless Chromium: what a page looks like once its scripts have run."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-default-apps", "--hide-scrollbars"),
)
_DEADLINE_S = 90.0


def chromium() -> str:
    """Its path. Skips the test, loudly, where there is none."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        reason = f"no browser: none of {', '.join(_NAMES)} is installed, so nobody has looked at the pages"
        warnings.warn(reason, stacklevel=2)
        pytest.skip(reason)
    return found


def seen_dom(url: str, *, seconds: float = 8.0) -> str:
    """The page's HTML after so many seconds of its own time."""
    return _run(url, "--dump-dom", seconds=seconds).stdout.decode(errors="replace")


def screenshot(url: str, path: Path, *, width: int, height: int, online: bool = True) -> Path:
    """The page as PNG. online: False lets it reach nothing."""
    options = [f"--screenshot={path}", f"--window-size={width},{height}"]
    if not online:
        options.append("--host-resolver-rules=MAP * ~NOTFOUND")
    _run(url, *options, seconds=5.0)
    assert path.is_file(), f"no screenshot of {url} was taken"
    return path


def _run(url: str, *options: str, seconds: float) -> subprocess.CompletedProcess[bytes]:
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        command = [
            *(chromium(), *_OPTIONS, f"--user-data-dir={profile}"),
            *(f"--virtual-time-budget={int(1000 * seconds)}", *options, url),
        ]
        ended = subprocess.run(command, capture_output=True, timeout=_DEADLINE_S, check=False)
    assert ended.returncode == 0, f"{url}: the browser failed: {ended.stderr.decode(errors='replace')[-2000:]}"
    return ended
