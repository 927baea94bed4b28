"""Asking a run for another number of servers: in its job, and while it trains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from hetero.errors import JobError, UserError
from hetero.loops.moves import ServersChanging, ServersReport
from hetero.observe.events import EventLog, read_events
from hetero.observe.run_folder import RunFolder
from hetero.records import ServersAt
from pipelines.job import dump_resolved, load_job, resolve, with_counts
from pipelines.progress import Silent
from pipelines.scale import scale_run
from pipelines.watching import Watcher
from tests.support.jobs import data_spec, small_job

JOB = {
    "name": "small",
    "data": {"train": "train.csv", "label": "label"},
    "features": {"sparse": [{"name": "user", "tables": ["deep"]}]},
    "tables": [{"name": "deep", "dim": 4}],
    "tower": {"name": "logistic_regression"},
}


def written(folder: Path, **sections: Mapping[str, object]) -> Path:
    (folder / "train.csv").write_text("user,label\na,1\n", encoding="utf-8")
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({**JOB, **sections}), encoding="utf-8")
    return path


SCHEDULE = {"servers": {"count": 2, "schedule": [{"step": 100, "count": 4}, {"step": 200, "count": 1}]}}


def test_a_schedule_is_resolved_and_a_number_given_leaves_it_out(tmp_path: Path) -> None:
    job = load_job(written(tmp_path, roles=SCHEDULE))
    assert resolve(job).server_schedule == (ServersAt(step=100, count=4), ServersAt(step=200, count=1))
    given = resolve(with_counts(job, servers=3))
    assert (given.servers.count, given.server_schedule) == (3, ())
    assert resolve(with_counts(job, towers=1)).server_schedule == resolve(job).server_schedule


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"train": {"mode": "async"}}, r"roles\.servers\.schedule.*dense parameters on the servers"),
        ({"train": {"mode": "geo"}}, r"roles\.servers\.schedule.*dense parameters on the servers"),
        (
            {"storage": {"memory_bytes": 1 << 20, "directories": "ssd", "ssd_bytes": 1 << 20}},
            r"roles\.servers\.schedule.*rows on SSD do not tell what changed",
        ),
        (
            {"roles": {"servers": {"schedule": [{"step": 9, "count": 2}, {"step": 9, "count": 3}]}}},
            r"steps must ascend, each once; got \[9, 9\]",
        ),
        ({"roles": {"servers": {"schedule": [{"step": 9, "count": 5000}]}}}, r"is 5000; at most one server a bucket"),
        ({"roles": {"servers": {"schedule": [{"step": 9, "count": 0}]}}}, r"roles\.servers\.schedule\[0\]\.count"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(tmp_path: Path, sections: dict[str, object], said: str) -> None:
    with pytest.raises(JobError, match=said):
        load_job(written(tmp_path, **{"roles": SCHEDULE, **sections}))  # type: ignore[arg-type]


def test_a_run_is_asked_through_its_folder(tmp_path: Path) -> None:
    job = load_job(written(tmp_path))
    with RunFolder.create(tmp_path / "run") as folder:
        folder.resolved_job.write_text(dump_resolved(job), encoding="utf-8")
        assert folder.take_asked_servers() is None
        scale_run(folder.path, servers=3)
        scale_run(folder.path, servers=4)
        assert folder.take_asked_servers() == 4
        assert folder.take_asked_servers() is None
        with pytest.raises(UserError, match="5000 servers: take 1 to 4096"):
            scale_run(folder.path, servers=5000)
    with pytest.raises(UserError, match=r"no run is alive in it; `hetero resume` takes --servers"):
        scale_run(tmp_path / "run", servers=3)
    with pytest.raises(UserError, match="there is no such folder"):
        scale_run(tmp_path / "none", servers=3)


def test_the_event_log_tells_of_every_change(tmp_path: Path) -> None:
    job = small_job(data_spec(tmp_path / "none.parquet"))
    with (
        RunFolder.create(tmp_path / "run") as folder,
        EventLog(folder.events, run="run", role="driver") as events,
    ):
        watcher = Watcher(job, folder=folder, events=events, progress=Silent())
        watcher.note_servers(ServersChanging(step=5, before=2, after=4))
        watcher.note_servers(ServersReport(step=9, before=2, after=4, rows=7, bytes=70, copy_s=0.5, pause_s=0.1))
        watcher.note_servers(ServersReport(step=9, before=4, after=9, error="no room"))
        told = [(event.name, dict(event.fields)) for event in read_events(folder.events)]
    assert told[0] == ("servers.changing", {"step": 5, "before": 2, "after": 4})
    assert told[1][0] == "servers.changed"
    assert told[1][1]["rows"] == 7
    assert told[2][0] == "servers.kept"
    assert told[2][1]["error"] == "no room"
