"""Runs on a cluster as its dashboard, its Prometheus endpoint and a browser show them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from hetero.observe.metrics import METRICS
from pipelines.grafana import RAYS_OWN, dashboard
from tests.support.browser import chromium, screenshot, seen_dom
from tests.support.cli import hetero, write_job
from tests.support.head import Head, get, head_node
from tests.support.prometheus import Prometheus, prometheus_of, refuse_without_prometheus
from tests.support.tiered_jobs import job_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]
ROLES = ("sequencer/0", "reader/0", "server/0", "server/1", "tower/0", "tower/1")
_WATCH_S = 40.0
_STEP_COLOR = (8, 81, 156)


@dataclass
class Watched:
    """A head on which runs were, and what was seen meanwhile. samples: newest line by metric and run."""

    head: Head
    folder: Path
    samples: dict[tuple[str, str], str] = field(default_factory=dict)
    actors: set[str] = field(default_factory=set)
    page: str = ""
    answers: dict[str, int] = field(default_factory=dict)

    def scrape(self) -> None:
        """Note what the endpoint has now."""
        for line in get(self.head.metrics).splitlines():
            if not line.startswith("#") and (name := re.match(r"\w+", line)):
                run = re.search(r'[,{]run="([^"]*)"', line)
                self.samples[name.group(), run.group(1) if run else ""] = line

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.samples}


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("dashboard")
    write_jobs(folder)
    with head_node(cpus=10) as head, prometheus_of(head.metrics, folder=folder / "prometheus") as prometheus:
        seen = Watched(head=head, folder=folder)
        over = threading.Event()
        scraping = threading.Thread(target=scrape_until, args=(seen, over))
        scraping.start()
        try:
            watch_a_long_run(seen)
            for words in (("short.yaml", "--set", "train.max_steps=20"), ("deep.yaml",)):
                ran = hetero("train", *words, "--run", f"runs/{words[0][:-5]}", "--address", head.address, cwd=folder)
                assert ran.code == 0, ran.out + ran.err
        finally:
            over.set()
            scraping.join()
        if prometheus is not None:
            ask_panels(seen, prometheus)
        yield seen


def write_jobs(folder: Path) -> None:
    """A job with everything that a wide run can tell, the same to be stopped, and a deep one."""
    job_of(folder)
    sections = {
        "data": {"train": "data.parquet", "test": "data.parquet", "weight": "weight", "shuffle": False},
        "train": {"batch_size": 256, "epochs": 1000, "mode": "bounded", "staleness": 4},
        "roles": {"readers": 1, "servers": 2, "towers": 2},
        "storage": {"memory_bytes": 3_180_000, "directories": "ssd", "ssd_bytes": "1GiB", "io": "cached"},
    }
    write_job(folder / "long.yaml", **sections)
    write_job(folder / "short.yaml", **sections)
    (folder / "text.txt").write_text("a text that is said again and again. " * 600, encoding="utf-8")
    packed = hetero("data", "text", "text.txt", "--folder", "text", cwd=folder)
    assert packed.code == 0, packed.err
    deep = {
        "name": "deep",
        "text": {"train": "text/train", "validation": "text/validation"},
        "transformer": {"layers": 2, "width": 32, "heads": 2, "context": 32},
        "train": {"batch_size": 8, "steps": 400, "evaluate_every": 50},
        "mesh": {"pp": 2, "micro_batches": 2},
        "run": {"threads": 1},
    }
    (folder / "deep.yaml").write_text(yaml.safe_dump(deep), encoding="utf-8")


def scrape_until(seen: Watched, over: threading.Event) -> None:
    while not over.wait(0.5):
        seen.scrape()
    time.sleep(3.0)
    seen.scrape()


def watch_a_long_run(seen: Watched) -> None:
    """Train until everything was looked at, then stop, as `ray job stop` does."""
    words = ("train", "long.yaml", "--run", "runs/long", "--address", seen.head.address)
    command = [sys.executable, "-c", "import sys; from pipelines.cli import main; sys.exit(main())", *words]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with (seen.folder / "long.log").open("wb") as log:
        run = subprocess.Popen(command, cwd=seen.folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        wanted = {f"long/{role}" for role in ROLES}
        deadline = time.monotonic() + _WATCH_S
        while not (wanted <= seen.actors and ("ray_hetero_staleness_mean", "long") in seen.samples):
            assert run.poll() is None, (seen.folder / "long.log").read_text()
            assert time.monotonic() < deadline, (sorted(seen.actors), sorted(seen.names))
            seen.actors |= {str(actor["name"]) for actor in seen.head.actors()}
            time.sleep(0.5)
        seen.page = page_of_actors(seen.head)
    finally:
        run.send_signal(signal.SIGTERM)
        run.wait(timeout=60)


def page_of_actors(head: Head) -> str:
    try:
        return seen_dom(f"{head.dashboard}/#/actors")
    except pytest.skip.Exception:
        return ""


def ask_panels(seen: Watched, prometheus: Prometheus) -> None:
    """How many series each panel of the dashboard finds of all runs."""
    for panel in dashboard()["panels"]:
        if panel["type"] != "row":
            query = panel["targets"][0]["expr"].replace("$run", ".+").replace("$__rate_interval", "5s")
            seen.answers[panel["title"]] = len(prometheus.ask(query, seconds=300))


def test_every_metric_of_the_docs_is_on_the_endpoint(watched: Watched) -> None:
    assert {metric.exported for metric in METRICS} <= watched.names
    assert {panel.metric for panel in RAYS_OWN} <= watched.names
    tower = watched.samples["ray_hetero_samples_total", "long"]
    assert re.search(r'role="tower"', tower), tower
    assert float(tower.rpartition(" ")[2]) > 0
    auc = float(watched.samples["ray_hetero_auc", "short"].rpartition(" ")[2])
    assert 0.3 < auc < 1.0


def test_roles_have_telling_names(watched: Watched) -> None:
    assert {f"long/{role}" for role in ROLES} <= watched.actors


def test_a_browser_sees_the_named_actors(watched: Watched) -> None:
    chromium()
    for role in ROLES:
        assert f"long/{role}" in watched.page


def test_every_panel_finds_something(watched: Watched) -> None:
    refuse_without_prometheus()
    assert len(watched.answers) == len(METRICS) + len(RAYS_OWN)
    assert [title for title, series in watched.answers.items() if not series] == []


@pytest.mark.parametrize("run", ["long", "short", "deep"])
def test_a_browser_sees_the_plots_of_a_run(watched: Watched, run: str) -> None:
    made = hetero("report", f"runs/{run}", "--json", cwd=watched.folder)
    assert made.code == 0, made.err
    assert made.json["bytes"] < 2_000_000
    page = watched.folder / "runs" / run / "report.html"
    plots = {"loss", "throughput", "timeline", "totals"} | ({"mfu"} if run == "deep" else {"hit-rates", "rows"})
    chromium()
    dom = seen_dom(page.as_uri(), seconds=2.0)
    assert plots <= set(re.findall(r'data-plot="([\w-]+)"', dom))
    shot = screenshot(page.as_uri(), watched.folder / f"{run}.png", width=1100, height=4200, online=False)
    pixels = np.asarray(Image.open(shot).convert("RGB")).astype(int)
    drawn = (np.abs(pixels - _STEP_COLOR).max(axis=2) < 12).sum()
    assert drawn > 3000, f"{drawn} pixels of {shot} have the color of tower.step"
