"""The page of a run: what it shows of whatever happened, and that it needs nothing but itself."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from hetero.errors import UserError
from hetero.observe.metrics import BYTES
from pipelines.run_page import write_page
from pipelines.run_record import AliveClock, RunRecord
from tests.support.cli import hetero_here, write_job
from tests.support.jobs import write_data
from tests.support.told_runs import ToldRun, deep_summary, wide_summary


class Page(HTMLParser):
    """Plots and text of a page; fails on tags that are not closed, and on anything that would be fetched."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.html = path.read_text(encoding="utf-8")
        self.plots: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(self.html)
        assert self._open == []
        assert not re.search(r"<script|@import|url\((?!#)", self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert "src" not in given
        for name in ("href", "xlink:href"):
            assert (given.get(name) or "#").startswith("#"), given
        if tag == "figure":
            self.plots.append(str(given["data-plot"]))
        if tag not in ("meta", "br"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(run: ToldRun) -> Page:
    return Page(Path(write_page(run.folder.path).path))


def test_a_wide_run_with_everything(tmp_path: Path) -> None:
    run = ToldRun(tmp_path / "all")
    run.start()
    run.train(20, tiers=True, stale=True)
    sums = {"memory_rows": 400, "ssd_rows": 100, "write_amplification": 1.5}
    disk = {"disk_read_bytes_per_sample": 10.0, "disk_written_bytes_per_sample": 5.0}
    told = {**sums, **disk, "memory_hits": 600, "memory_hit_rate": 0.75, "predicted_memory_hit_rate": 0.7}
    staleness = {"histogram": {"0": 10, "3": 2}, "max": 3, "mean": 0.5}
    run.finish(
        wide_summary(
            run,
            staleness=staleness,
            mode="bounded",
            predicted_samples_per_s=1100.0,
            tiers=told,
            warnings=["<b>look</b>"],
        )
    )
    page = page_of(run)
    plots = {
        "loss",
        "throughput",
        "timeline",
        "totals",
        "rows",
        "hit-rates",
        "tier-rows",
        "staleness",
        "bytes",
        "predicted",
    }
    assert set(page.plots) == plots
    assert "<b>look" not in page.html
    assert "warning: <b>look</b>" in page.text
    assert re.search(r"samples per s\s*1,100\s*1,000\s*-9\.1%", page.text)
    assert re.search(r"memory hit rate\s*0\.7\s*0\.75\s*\+7\.1%", page.text)


def test_a_run_without_tiers_staleness_and_plan_says_why(tmp_path: Path) -> None:
    run = ToldRun(tmp_path / "plain")
    run.start()
    run.train(20)
    run.finish(wide_summary(run))
    page = page_of(run)
    assert {"hit-rates", "staleness", "predicted"}.isdisjoint(page.plots)
    assert "no budget of memory (storage.memory_bytes)" in page.text
    assert "in mode sync, and with one tower, no row is ever stale" in page.text
    assert "Nothing was predicted: train with --plan" in page.text


def test_a_deep_run(tmp_path: Path) -> None:
    run = ToldRun(tmp_path / "words", job="words")
    run.start(mesh="pp 2")
    run.step = 100  # it went on from a snapshot
    run.train_deep(20, ranks=2)
    run.finish(deep_summary(run))
    page = page_of(run)
    assert set(page.plots) == {"loss", "throughput", "mfu", "timeline", "totals"}
    assert RunRecord(run.folder.path).losses[0].tolist() == list(range(101, 181))
    assert "2.0 KiB" in page.text
    assert "validation after step 120: loss 3.0000" in page.text


def test_a_deep_run_shows_what_was_predicted_of_each_part(tmp_path: Path) -> None:
    run = ToldRun(tmp_path / "promised", job="words")
    run.start(mesh="pp 2")
    run.train_deep(8, ranks=2)
    told = {
        "predicted_tokens_per_s": 512.0,
        "bubble": {"pp/0": 0.25, "pp/1": 0.5},
        "predicted_bubble": {"pp/0": 0.2, "pp/1": 0.4},
        "sent_bytes": {"pp": {"node": 2048.0, "network": 2048.0}, "world": {"node": 16.0}},
        "predicted_sent_bytes": {"pp": 8192.0},
        "peak_bytes": {"rank/0": 1000},
        "predicted_peak_bytes": {"rank/0": 500.0},
    }
    run.finish({**deep_summary(run), **told})
    page = page_of(run)
    assert "predicted" in page.plots
    for name, difference in {
        "tokens per s": "-50.0%",
        "bubble pp/0": "+25.0%",
        "bubble pp/1": "+25.0%",
        "sent bytes pp": "-50.0%",
        "peak bytes rank/0": "+100.0%",
    }.items():
        assert re.search(rf"{name}\s*[\d.,]+\s*[\d.,]+\s*{re.escape(difference)}", page.text), name


def test_a_run_that_is_training_has_a_page(tmp_path: Path) -> None:
    run = ToldRun(tmp_path / "now")
    run.start()
    run.train(20, stale=True)
    page = page_of(run)
    assert "has not ended" in page.text
    assert {"loss", "throughput", "timeline", "staleness"} <= set(page.plots)
    assert "known once it has" in page.text


def test_a_failed_run_says_how_and_a_short_one_has_no_timeline(tmp_path: Path) -> None:
    run = ToldRun(tmp_path / "short")
    run.start()
    run.train(1)
    run.events.event("run.failed", error="DataError", message="row group 3 is damaged")
    page = page_of(run)
    assert "failed: DataError: row group 3 is damaged" in page.text
    assert "timeline" not in page.plots
    assert "too short for two pulses" in page.text


def test_a_resumed_and_recovered_run(tmp_path: Path) -> None:
    run = ToldRun(tmp_path / "again")
    run.start()
    run.train(10)
    run.events.event("run.stopped", message="asked to")
    run.t += 86_400.0
    run.events.event("run.started", job="clicks", placement="local Ray")
    run.events.event("run.resumed", step=100, rows=10_000, path="snapshots/step-100")
    run.train(10)
    lost = {"lost": "server/0", "step": 200, "back_to": 200, "steps_repeated": 0, "lost_s": 4.0, "phase": "train"}
    run.events.event("run.recovered", role=None, action="go back", reason="it is gone", **lost)
    run.finish(wide_summary(run))
    record = RunRecord(run.folder.path)
    assert record.alive.total_s == pytest.approx(25.0, abs=0.5)
    shares = record.shares("tower/0", bins=60)
    assert shares is not None
    np.testing.assert_allclose(shares.shares["tower.step"], 0.75, atol=0.3)
    assert (record.speed(bins=20).values >= 0).all()
    assert record.totals()["tower/0"] == pytest.approx({"tower.step": 15.0, "wait.server": 5.0})
    moved = record.metric("tower/0", BYTES, "pulled").values
    assert (np.diff(moved) > 0).all()
    assert moved[-1] == 20_000
    page = page_of(run)
    assert "went on from the snapshot of step 100" in page.text
    assert "server/0 lost at step 200 (train), back to step 200" in page.text


def test_shares_and_rates_are_those_of_the_run(tmp_path: Path) -> None:
    run = ToldRun(tmp_path / "even")
    run.start()
    run.train(50)
    record = RunRecord(run.folder.path)
    shares = record.shares("tower/0", bins=10)
    assert shares is not None
    assert len(shares.edges) == 11
    np.testing.assert_allclose(shares.shares["tower.step"], 0.75, rtol=1e-6)
    np.testing.assert_allclose(shares.shares["wait.server"], 0.25, rtol=1e-6)
    np.testing.assert_allclose(shares.rest, 0.0, atol=1e-6)
    np.testing.assert_allclose(record.speed(bins=10).values, 10.0, rtol=1e-6)


def test_an_alive_clock_leaves_out_the_time_between_lives(tmp_path: Path) -> None:
    run = ToldRun(tmp_path / "lives", t=100.0)
    run.start()
    run.events.event("run.stopped", message="")
    run.t = 1000.0
    run.start()
    clock = AliveClock(RunRecord(run.folder.path).events)
    np.testing.assert_allclose(clock([100.0, 105.0, 500.0, 1000.0, 1003.0, 2000.0]), [0, 5, 5, 5, 8, 10])
    np.testing.assert_allclose(clock.resumed, [5.0])


def test_many_roles_are_drawn_as_their_mean(tmp_path: Path) -> None:
    run = ToldRun(tmp_path / "many", job="words")
    run.start(mesh="dp 16")
    run.train_deep(10, ranks=16)
    page = page_of(run)
    assert "16 ranks" in page.text


def test_a_folder_without_a_run_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such folder"):
        write_page(tmp_path / "nothing")
    run = ToldRun(tmp_path / "empty")
    with pytest.raises(UserError, match="the run has not begun"):
        write_page(run.folder.path)


def test_the_command_draws_a_run_in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path / "train.parquet", rows=1500, seed=1)
    write_data(tmp_path / "test.parquet", rows=300, seed=2)
    write_job(tmp_path / "job.yaml", roles={"readers": 1, "servers": 2, "towers": 1})
    trained = hetero_here("train", "job.yaml", "--in-process", "--json")
    assert trained.code == 0, trained.err
    ran = hetero_here("report", "runs/small", "--out", "page.html", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["bytes"] == (tmp_path / "page.html").stat().st_size
    page = Page(tmp_path / "page.html")
    assert {"loss", "throughput", "timeline", "totals", "rows", "bytes"} == set(page.plots)
