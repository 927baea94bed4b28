"""A head with dashboard and job server, and `ray job ...` against it, each with a deadline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.cli import Ran

RAY = Path(sys.executable).parent / "ray"
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [str(ROOT / name) for name in ("hetero", "actors", "pipelines")]
"""What a job brings to a cluster on which hetero is not installed."""


@dataclass(frozen=True, kw_only=True)
class JobServer:
    """url: of the dashboard. address: of the cluster."""

    url: str
    address: str

    def ray(self, *words: str, deadline_s: float = 150.0) -> Ran:
        """`ray WORDS` against this cluster; err holds both streams, as Ray writes to either."""
        environment = {**os.environ, "RAY_API_SERVER_ADDRESS": self.url, "RAY_AUTH_MODE": "disabled"}
        ended = subprocess.run(
            [str(RAY), *words], capture_output=True, text=True, timeout=deadline_s, env=environment, check=False
        )
        return Ran(code=ended.returncode, out=ended.stdout, err=ended.stdout + ended.stderr)

    def submit(self, *command: str, folder: Path, variables: Mapping[str, str] | None = None, name: str) -> Ran:
        """`ray job submit --working-dir folder`, which brings hetero with it and waits for the end."""
        return self.ray(*self.submission(folder, variables, name), "--", *command)

    def submission(self, folder: Path, variables: Mapping[str, str] | None, name: str) -> list[str]:
        environment = {"py_modules": PACKAGES, "env_vars": {"OMP_NUM_THREADS": "1", **(variables or {})}}
        words = ["--working-dir", str(folder), "--runtime-env-json", json.dumps(environment)]
        return ["job", "submit", "--submission-id", name, *words]

    def get(self, path: str) -> Any:
        """JSON of the dashboard's interface."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=20) as answer:
            return json.load(answer)


@contextmanager
def job_server(*, num_cpus: int) -> Iterator[JobServer]:
    """A head of its own, without this checkout on its import path, so that jobs have to bring it."""
    from ray.cluster_utils import Cluster

    set_before = {name: os.environ.get(name) for name in ("RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED", "PYTHONPATH")}
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    os.environ.pop("PYTHONPATH", None)
    nodes = {"num_cpus": num_cpus, "object_store_memory": 150_000_000, "include_dashboard": True}
    cluster: Any = Cluster(initialize_head=True, head_node_args=nodes)
    try:
        yield JobServer(url=f"http://{cluster.webui_url}", address=cluster.address)
    finally:
        cluster.shutdown()
        for name, value in set_before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
