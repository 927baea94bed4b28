"""A disk that refuses: the error names file and remedy, the draft goes, and what was good stays good."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero.checkpoint.retention import remove_drafts
from hetero.checkpoint.search import latest_good, verify
from hetero.checkpoint.snapshot import PARTIAL, REPLACED, Snapshot, SnapshotDraft, list_snapshots, snapshot_name
from hetero.checkpoint.state import write_state
from hetero.checkpoint.storage import LocalTarget, Storage
from hetero.errors import SnapshotError
from tests.support.snapshots import JOB, Stores, new_stores, save, trained, write_all

REASONS = [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES, errno.EDQUOT]


class FailingDisk:
    """Counts calls that change the disk and lets the `fails_at`-th fail; a failing write takes a part first."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.fails_at = -1
        self.error = errno.ENOSPC
        patch.setattr(os, "rename", self._counted(os.rename))
        patch.setattr(os, "makedirs", self._counted(os.makedirs))
        patch.setattr(os, "fsync", self._counted(lambda descriptor: None))
        patch.setattr(LocalTarget, "write", lambda target, data: self._write(target, data))

    def _write(self, target: Any, data: memoryview) -> None:
        if self._fails():
            os.write(target._descriptor, data[: data.nbytes // 2])
            raise OSError(self.error, os.strerror(self.error))
        os.write(target._descriptor, data)

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            if self._fails():
                raise OSError(self.error, os.strerror(self.error))
            return call(*arguments, **named)

        return counted

    def _fails(self) -> bool:
        self.calls += 1
        return self.calls == self.fails_at


@pytest.fixture(scope="module")
def stores() -> list[Stores]:
    return trained(2, rows=10)


@pytest.mark.parametrize("replaces", [True, False])
def test_a_disk_that_fails_at_any_call(
    tmp_path: Path, stores: list[Stores], monkeypatch: pytest.MonkeyPatch, replaces: bool
) -> None:
    old, new = snapshot_name(3), snapshot_name(3 if replaces else 6)
    save([new_stores()], tmp_path / snapshot_name(2), step=2)
    save([new_stores()], tmp_path / old)
    disk = FailingDisk(monkeypatch)
    random = np.random.default_rng(0)
    failed = 0
    while True:
        disk.calls, disk.fails_at, disk.error = 0, failed + 1, int(random.choice(REASONS))
        said = refusal_of(stores, tmp_path / new)
        if said is None:
            break
        failed += 1
        assert str(tmp_path) in said
        assert os.strerror(disk.error) in said
        assert not list(tmp_path.glob(f"*{PARTIAL}"))
        remove_drafts(tmp_path)
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {snapshot_name(2), old, *({new} & left)}
        found = latest_good(tmp_path, job=JOB)
        assert found.findings == ()
        assert verify(tmp_path / old) == ()
        assert verify(tmp_path / snapshot_name(2)) == ()
    assert failed > 30
    assert Snapshot.open(tmp_path / new).manifest.step == 6
    assert verify(tmp_path / new) == ()


def refusal_of(stores: list[Stores], folder: Path) -> str | None:
    """What the error of saving says; None when it was saved."""
    try:
        save(stores, folder, step=6)
    except SnapshotError as error:
        return str(error)
    return None


def test_a_device_without_space(tmp_path: Path, stores: list[Stores]) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    save([new_stores()], tmp_path / snapshot_name(3))
    full = "rows/group-01.server-0001.part-0000.parquet"

    def fill_disk_and_save() -> None:
        with SnapshotDraft.begin(tmp_path, name=snapshot_name(6), step=6) as draft:
            Path(draft.path, "rows").mkdir()
            Path(draft.path, full).symlink_to("/dev/full")
            write_all(stores, draft)

    message = rf"{full}: cannot be written \(.*No space left on device\); the disk is full: free some space"
    with pytest.raises(SnapshotError, match=message):
        fill_disk_and_save()
    assert [path.name for path in tmp_path.iterdir()] == [snapshot_name(3)]
    assert verify(tmp_path / snapshot_name(3)) == ()


def test_a_folder_that_may_not_be_written(tmp_path: Path, stores: list[Stores]) -> None:
    save([new_stores()], tmp_path / snapshot_name(3))
    tmp_path.chmod(0o500)
    try:
        with as_ordinary_user(), pytest.raises(SnapshotError, match=r"cannot be written.*Permission denied"):
            save(stores, tmp_path / snapshot_name(6))
    finally:
        tmp_path.chmod(0o700)
    assert [path.name for path in tmp_path.iterdir()] == [snapshot_name(3)]
    assert verify(tmp_path / snapshot_name(3)) == ()


@contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Permissions hold for everybody but root."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_what_killed_runs_left_is_removed_and_what_they_moved_aside_comes_back(tmp_path: Path) -> None:
    draft = SnapshotDraft.begin(tmp_path, name=snapshot_name(4), step=4)
    Path(draft.path, "rows.parquet").write_bytes(b"half")
    save([new_stores()], tmp_path / snapshot_name(3))
    (tmp_path / snapshot_name(3)).rename(tmp_path / (snapshot_name(3) + REPLACED))
    save([new_stores()], tmp_path / snapshot_name(5), step=5)
    shutil.copytree(tmp_path / snapshot_name(5), tmp_path / (snapshot_name(5) + REPLACED))
    assert list_snapshots(tmp_path) == (snapshot_name(5),)
    assert remove_drafts(tmp_path) == (snapshot_name(4) + PARTIAL, snapshot_name(5) + REPLACED)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [snapshot_name(3), snapshot_name(5)]
    assert verify(tmp_path / snapshot_name(3)) == ()


def test_a_draft_begun_anew_holds_nothing_of_the_one_before(tmp_path: Path) -> None:
    before = SnapshotDraft.begin(tmp_path, name="model", step=1)
    Path(before.path, "left.parquet").write_bytes(b"half")
    save([new_stores()], tmp_path / "model")
    assert not (tmp_path / "model" / "left.parquet").exists()
    assert Storage(tmp_path).names() == ["model"]


def test_files_that_another_machine_wrote_elsewhere_are_missed(tmp_path: Path) -> None:
    def commit_what_is_not_there() -> None:
        with SnapshotDraft.begin(tmp_path, name="model", step=1) as draft:
            entry = write_state({}, folder=str(tmp_path / "elsewhere"))
            draft.commit(JOB, files=[entry], held=(0, 0))

    with pytest.raises(SnapshotError, match=r"state\.json: has None bytes, 3 were written; do all roles see the same"):
        commit_what_is_not_there()
