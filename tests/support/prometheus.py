"""A Prometheus that scrapes one endpoint every second, to ask it what dashboards ask."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.head import free_ports, get

_CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: ray
    static_configs: [{{targets: ["{target}"]}}]
"""
_START_S = 30.0


class Prometheus:
    """Answers queries at `url`."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, query: str, *, seconds: float) -> list[dict[str, Any]]:
        """Series that a query finds of the last `seconds`; fails for one that is not PromQL."""
        now = time.time()
        span = urllib.parse.urlencode({"query": query, "start": now - seconds, "end": now, "step": 1})
        record = json.loads(get(f"{self._url}/api/v1/query_range?{span}"))
        assert record["status"] == "success", record
        found: list[dict[str, Any]] = record["data"]["result"]
        return found


def refuse_without_prometheus() -> None:
    """Skip the test, loudly, where Prometheus is not installed."""
    if shutil.which("prometheus") is None:
        reason = "prometheus is not installed, so nobody has tried the dashboard's queries"
        warnings.warn(reason, stacklevel=2)
        pytest.skip(reason)


@contextmanager
def prometheus_of(metrics: str, *, folder: Path) -> Iterator[Prometheus | None]:
    """Up for the duration; None where it is not installed. metrics: URL to scrape."""
    path = shutil.which("prometheus")
    if path is None:
        yield None
        return
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "prometheus.yml"
    config.write_text(_CONFIG.format(target=urllib.parse.urlparse(metrics).netloc))
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    options = (
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([path, *options], stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                get(f"{url}/-/ready")
                break
            except OSError:
                assert time.monotonic() < deadline, (folder / "prometheus.log").read_text()
                time.sleep(0.2)
        yield Prometheus(url)
    finally:
        process.terminate()
        process.wait(timeout=15)
