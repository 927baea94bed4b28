"""A Ray head with dashboard and Prometheus endpoint, as `ray start --head` starts it, in processes of its own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from actors.context import WORKER_VARIABLES

_START_S = 90.0
_LOOK_EVERY_S = 0.3
_END_S = 15.0


@dataclass(frozen=True, kw_only=True)
class Head:
    """address: for `--address`. dashboard, metrics: URLs."""

    address: str
    dashboard: str
    metrics: str

    def actors(self) -> list[dict[str, Any]]:
        """Actors that are alive, as the dashboard knows them."""
        query = "detail=0&limit=100&filter_keys=state&filter_predicates=%3D&filter_values=ALIVE"
        record = json.loads(get(f"{self.dashboard}/api/v0/actors?{query}"))
        found: list[dict[str, Any]] = record["data"]["result"]["result"]
        return found


@contextmanager
def head_node(*, cpus: int) -> Iterator[Head]:
    """Up for the duration; it ends its own processes and no others."""
    short = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)  # as paths of sockets have to be
    with short as folder, _started(Path(folder), cpus=cpus) as head:
        yield head


@contextmanager
def _started(folder: Path, *, cpus: int) -> Iterator[Head]:
    gcs, dashboard, metrics, client = free_ports(4)
    command = [
        *(sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--head", "--block"),
        *(f"--port={gcs}", f"--num-cpus={cpus}", "--object-store-memory=150000000", "--include-dashboard=true"),
        *(f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1", f"--metrics-export-port={metrics}"),
        *("--disable-usage-stats", f"--ray-client-server-port={client}", f"--temp-dir={folder}"),
    ]
    alone = {"RAY_TMPDIR": str(folder), "RAY_AUTH_MODE": "disabled"}  # what runs besides does not find this cluster
    quick = {"RAY_metrics_report_interval_ms": "1000", "RAY_worker_niceness": "0", **WORKER_VARIABLES}
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, **alone, **quick, "PYTHONPATH": root}
    with (folder / "head.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    children: list[psutil.Process] = []
    try:
        head = Head(
            address=f"127.0.0.1:{gcs}",
            dashboard=f"http://127.0.0.1:{dashboard}",
            metrics=f"http://127.0.0.1:{metrics}/metrics",
        )
        _await_answer(process, [f"{head.dashboard}/api/version", head.metrics], log=folder / "head.log")
        yield head
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_END_S)
        for left in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()
        process.kill()
        process.wait()


def get(url: str) -> str:
    """What a URL answers."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def _await_answer(process: subprocess.Popen[bytes], urls: list[str], *, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    left = list(urls)
    while left:
        assert process.poll() is None, f"ray start ended: {log.read_text()}"
        assert time.monotonic() < deadline, f"{left[0]} does not answer: {log.read_text()}"
        try:
            get(left[0])
            left.pop(0)
        except (urllib.error.URLError, OSError):
            time.sleep(_LOOK_EVERY_S)


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [server.getsockname()[1] for server in held]
    finally:
        for server in held:
            server.close()
