"""Folders of runs as runs write them, made up: so that a page can be drawn of any course of events in no time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hetero.observe.events import EventLog
from hetero.observe.metrics import (
    BYTES,
    MFU,
    ROWS,
    SECONDS,
    STALENESS_MEAN,
    TIER_HITS,
    TIER_ROWS,
    Pulse,
    Sample,
)
from hetero.observe.run_folder import RESOLVED_JOB, RunFolder
from hetero.observe.summary import Summary
from pipelines.deep_summary import DeepSummary


class ToldRun:
    """Writes the log of a run second by second. t: unix seconds now."""

    def __init__(self, path: Path, *, job: str = "clicks", t: float = 1_000_000.0) -> None:
        path.mkdir(parents=True)
        (path / RESOLVED_JOB).write_text(f"name: {job}\n")
        self.folder = RunFolder.open(path)
        self.t = t
        self.step = 0
        self.losses: list[float] = []
        self.step_ends: list[float] = []
        self._job = job
        self.events = EventLog(self.folder.events, run=path.name, role="driver", clock=lambda: self.t)

    def start(self, **fields: str) -> None:
        self.events.event("run.started", job=self._job, placement="local Ray", role=None, **fields)
        self.t += 5.0
        self.events.event("train.started")

    def train(self, seconds: int, *, tiers: bool = False, stale: bool = False) -> None:
        """A wide run: ten steps a second, pulses of a reader, a server and a tower."""
        for second in range(seconds):
            now = float(second + 1)
            for _ in range(10):
                self.t += 0.1
                self.step += 1
                self.losses.append(0.7 / self.step**0.1)
                self.step_ends.append(self.t)
            self.events.step(self.step, loss=self.losses[-1], rows=100 * self.step, rows_per_s=1000.0)
            server = [Sample(SECONDS, 0.25 * now, "rows.pull"), Sample(ROWS, 50 * now, "deep")]
            if tiers:
                server += [Sample(TIER_HITS, 30 * now, "memory"), Sample(TIER_HITS, 10 * now, "ssd")]
                server += [Sample(TIER_ROWS, 40 * now, "memory"), Sample(TIER_ROWS, 10 * now, "ssd")]
            if stale:
                server.append(Sample(STALENESS_MEAN, 0.5))
            tower = [Sample(SECONDS, 0.75 * now, "tower.step"), Sample(SECONDS, 0.25 * now, "wait.server")]
            tower.append(Sample(BYTES, 1000 * now, "pulled"))
            self.pulse("reader/0", [Sample(SECONDS, 0.5 * now, "data.batch")])
            self.pulse("server/0", server)
            self.pulse("tower/0", tower)

    def train_deep(self, seconds: int, *, ranks: int) -> None:
        """A deep run: four steps a second."""
        for second in range(seconds):
            for _ in range(4):
                self.t += 0.25
                self.step += 1
                self.losses.append(4.0 / self.step**0.1)
                self.step_ends.append(self.t)
            self.events.step(self.step, role="rank/0", loss=self.losses[-1])
            if second % 5 == 4:
                self.events.event("evaluation", step=self.step, loss=3.0, targets=100)
            for rank in range(ranks):
                spent = [Sample(SECONDS, 0.9 * (second + 1), "tower.step"), Sample(MFU, 0.4)]
                self.pulse(f"rank/{rank}", spent)

    def pulse(self, role: str, samples: list[Sample]) -> None:
        self.events.pulse(Pulse(role=role, t=self.t, samples=tuple(samples)))

    def finish(self, summary: Mapping[str, object]) -> None:
        """Write what a run writes last."""
        np.save(self.folder.losses, self.losses)
        np.save(self.folder.step_ends, self.step_ends)
        self.events.event("run.finished")
        self.folder.summary.write_text(json.dumps(summary))
        self.events.close()


def wide_summary(run: ToldRun, **changes: object) -> dict[str, object]:
    """The summary of a wide run."""
    summary = Summary(
        name="clicks",
        run_folder=str(run.folder.path),
        seed=1,
        placement="local Ray",
        steps=run.step,
        samples=100 * run.step,
        samples_per_s=1000.0,
        wall_s=60.0,
        auc=0.75,
        logloss=0.5,
        test_samples=1000,
        rows={"deep/user": 500},
    )
    return {**summary.to_dict(), **changes}


def deep_summary(run: ToldRun) -> dict[str, object]:
    """The summary of a deep run."""
    return DeepSummary(
        name="words",
        run_folder=str(run.folder.path),
        seed=1,
        placement="local Ray",
        mesh="pp 2",
        ranks=2,
        parameters=1000,
        steps=run.step,
        tokens=64 * run.step,
        tokens_per_s=256.0,
        mfu=0.4,
        matrix_flops=1e9,
        flops_per_token=1e6,
        wall_s=60.0,
        final_loss=3.0,
        validation_loss=3.0,
        evaluations=(),
        peak_bytes={"rank/0": 1 << 20},
        precision="fp32",
        sent_bytes={"pp": {"node": 2048.0}},
    ).to_dict()
