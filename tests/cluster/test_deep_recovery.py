"""A deep run goes on by itself from its newest snapshot; a rank that hangs while it answers is named."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import ray

from actors.calls import Answer
from actors.naming import NAMESPACE, Member, Role
from actors.pings import Pings
from actors.rank import DeepContext
from actors.ranks import RankGroup
from hetero.errors import DeadlineError, PeerLostError
from hetero.loops.deep import SNAPSHOTS
from hetero.records.mesh import MeshSpec
from pipelines.build import Placement
from pipelines.deep_schema import DeepJob
from pipelines.progress import ProgressRecord, Silent
from pipelines.text import pack_text
from pipelines.text_codec import TokenizerKind
from pipelines.train_deep import fit_deep
from tests.cluster.test_deep_ranks import job_of

STEPS = 200


class KillsOnce(Silent):
    """Ends rank 1's process once a snapshot is there."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self.done = False

    def update(self, record: ProgressRecord) -> None:
        if not self.done and list((self._run / SNAPSHOTS).glob("step-*")):
            handle: Any = ray.get_actor(f"{self._run.name}/rank/1", namespace=NAMESPACE)
            os.kill(int(cast(Any, ray).get(handle.ping.remote(), timeout=20)), signal.SIGKILL)
            self.done = True


@pytest.mark.slow
def test_a_run_goes_on_from_its_newest_snapshot_when_a_rank_is_lost(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 200)
    pack_text([str(tmp_path / "text.txt")], folder=tmp_path / "t", tokenizer=TokenizerKind.CHAR)
    job = DeepJob(
        name="restarted",
        text={"train": str(tmp_path / "t/train")},
        transformer={"layers": 2, "width": 32, "heads": 2, "context": 32},
        train={"batch_size": 8, "steps": STEPS, "snapshot_every": 5, "restarts": 1},
        mesh={"dp": 2},
        run={"deadline_s": 15.0},
    )
    kills = KillsOnce(tmp_path / "restarted")
    summary = fit_deep(job, run_folder=tmp_path / "restarted", progress=kills, placement=Placement())
    assert kills.done
    assert len(summary.restarts) == 1
    assert "rank/1 died" in summary.restarts[0]
    alone = fit_deep(
        DeepJob(**{**job.model_dump(mode="json"), "mesh": {}}),
        run_folder=tmp_path / "alone",
        progress=Silent(),
        placement=Placement(in_process=True),
    )
    resumed = np.load(tmp_path / "restarted" / "losses.npy")
    np.testing.assert_allclose(resumed, np.load(tmp_path / "alone" / "losses.npy")[-len(resumed) :], rtol=1e-4)
    assert summary.final_loss == pytest.approx(alone.final_loss, rel=1e-4)


def impostor() -> type:
    """A class that travels to its actor as a whole: there this module has no name."""

    class Impostor:
        """Stands for a rank: fails as one whose peer is late, or hangs, and answers pings all the while."""

        def fail(self) -> None:
            raise PeerLostError("rank 0 of 2: step 3 did not finish; another rank is gone or late")

        def hang(self) -> None:
            threading.Event().wait(60)

        @ray.method(concurrency_group="control")
        def ping(self) -> int:
            return 0

        @ray.method(concurrency_group="control")
        def news(self) -> None:
            return None

    return Impostor


def test_a_rank_that_hangs_while_it_answers_is_named(tmp_path: Path) -> None:
    group = RankGroup.__new__(RankGroup)
    group.context = DeepContext(run="hung", job=job_of(tmp_path, MeshSpec(dp=2)), folder=tmp_path)
    actor = cast(Any, ray).remote(concurrency_groups={"control": 1}, num_cpus=0)(impostor())
    first, second = (Member("hung", Role.RANK, index) for index in range(2))
    group.members = {first: actor.remote(), second: actor.remote()}
    group._pings = Pings(group.members, deadline_s=20.0)
    group._placement = None
    try:
        answers: list[Answer[Any]] = [
            Answer(ref=group.members[first].fail.remote(), member=first, what="train", deadline_s=20.0),
            Answer(ref=group.members[second].hang.remote(), member=second, what="train", deadline_s=20.0),
        ]
        with pytest.raises(
            DeadlineError, match=r"hung/rank/1: alive, but in no collective .* it hangs; meanwhile: rank 0"
        ):
            group._watch_over(answers, watch=lambda _: None)
    finally:
        group.close()
