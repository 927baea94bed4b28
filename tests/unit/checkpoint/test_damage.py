"""Damaged snapshots: whatever was done to one, it is noticed and named, and the one before is used."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from hetero.checkpoint.manifest import MANIFEST, decode, encode
from hetero.checkpoint.search import Damage, latest_good, verify
from hetero.checkpoint.snapshot import Snapshot, SnapshotDraft, snapshot_name
from hetero.checkpoint.state import read_state
from hetero.checkpoint.tensors import DENSE, read_tensors
from hetero.errors import DataError
from hetero.records import GroupSpec
from tests.support.snapshots import JOB, load, new_stores, save, trained, write_all

OLD, NEW = snapshot_name(3), snapshot_name(6)


@dataclass(frozen=True, slots=True)
class Folder:
    """`folder` holds a good snapshot OLD and one to damage, NEW, of which `files` are the contents."""

    folder: Path
    files: dict[str, bytes]

    @property
    def new(self) -> Path:
        return self.folder / NEW

    def mend(self) -> None:
        """Undo any damage."""
        shutil.rmtree(self.new, ignore_errors=True)
        for name, data in self.files.items():
            (self.new / name).parent.mkdir(parents=True, exist_ok=True)
            (self.new / name).write_bytes(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    base = tmp_path_factory.mktemp("snapshots")
    save(trained(1, rows=10), base / OLD)
    save(trained(1, rows=20), base / NEW, step=6)
    paths = [path for path in (base / NEW).rglob("*") if path.is_file()]
    return Folder(base, {str(path.relative_to(base / NEW)): path.read_bytes() for path in paths})


@pytest.fixture(autouse=True)
def whole(folder: Folder) -> None:
    folder.mend()


def good_name(folder: Folder) -> str:
    good = latest_good(folder.folder, job=JOB).good
    assert good is not None
    return good.name


def damages(folder: Folder) -> set[Damage]:
    """What is found wrong with NEW. It cannot be loaded then, and OLD is the newest that is good."""
    found = latest_good(folder.folder, job=JOB)
    assert {finding.snapshot for finding in found.findings} <= {NEW}
    if found.findings:
        assert good_name(folder) == OLD
        with pytest.raises(DataError):
            read_everything(folder.new)
    return {finding.damage for finding in found.findings}


def read_everything(path: Path) -> None:
    load(path, 1)
    snapshot = Snapshot.open(path)
    read_tensors(snapshot, name=DENSE)
    read_state(snapshot)


def test_whole_ones_are_good(folder: Folder) -> None:
    assert damages(folder) == set()
    assert verify(folder.new, job=JOB) == ()
    read_everything(folder.new)


def test_an_empty_folder_or_none_has_no_snapshot(tmp_path: Path) -> None:
    assert latest_good(tmp_path).good is None
    assert latest_good(tmp_path / "nowhere").good is None


def cut_off(data: bytes, random: np.random.Generator) -> bytes:
    return data[: random.integers(len(data))]


def flip(data: bytes, random: np.random.Generator) -> bytes:
    flipped = bytearray(data)
    flipped[random.integers(len(data))] ^= 1 << int(random.integers(8))
    return bytes(flipped)


def grow(data: bytes, random: np.random.Generator) -> bytes:
    return data + random.bytes(int(random.integers(1, 9)))


def blank(data: bytes, random: np.random.Generator) -> bytes:
    """A page that was never written."""
    start = int(random.integers(len(data)))
    zeros = bytes(min(4096, len(data) - start))
    return data[:start] + zeros + data[start + len(zeros) :]


def swap(data: bytes, random: np.random.Generator) -> bytes:
    """Two parts that changed places."""
    middle = int(random.integers(1, len(data)))
    return data[middle:] + data[:middle]


def fuzz(folder: Folder, *, mutations: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    ways: list[Callable[[bytes, np.random.Generator], bytes]] = [cut_off, flip, grow, blank, swap]
    noticed = 0
    while noticed < mutations:
        names = random.choice(list(folder.files), random.choice([1, 1, 1, 2]), replace=False)
        for name in names:
            path = folder.new / str(name)
            if random.random() < 0.05:
                path.unlink()
            else:
                path.write_bytes(ways[random.integers(len(ways))](folder.files[str(name)], random))
        changed = [name for name in names if not same(folder, str(name))]
        assert bool(verify(folder.new, job=JOB)) == bool(changed), changed
        if noticed % 10 == 0:
            assert bool(damages(folder)) == bool(changed), changed
        noticed += bool(changed)
        for name in names:
            (folder.new / str(name)).write_bytes(folder.files[str(name)])


def same(folder: Folder, name: str) -> bool:
    path = folder.new / name
    return path.is_file() and path.read_bytes() == folder.files[name]


def test_no_damage_goes_unnoticed(folder: Folder) -> None:
    fuzz(folder, mutations=150, seed=0)


@pytest.mark.slow
def test_no_damage_of_thousands_goes_unnoticed(folder: Folder) -> None:
    fuzz(folder, mutations=3000, seed=1)


def test_cut_off_at_any_byte(folder: Folder) -> None:
    """Every length of the manifest; of the other files, whose lengths it holds, the ends."""
    data = folder.files[MANIFEST]
    for length in range(len(data)):
        with pytest.raises(DataError, match=r"^the/manifest: "):
            decode(data[:length], path="the/manifest")
    for length in (0, 1, len(data) // 2, len(data) - 2, len(data) - 1):
        (folder.new / MANIFEST).write_bytes(data[:length])
        assert damages(folder) == {Damage.MANIFEST}
    folder.mend()
    for name in set(folder.files) - {MANIFEST}:
        for length in (0, 1, len(folder.files[name]) // 2, len(folder.files[name]) - 1):
            (folder.new / name).write_bytes(folder.files[name][:length])
            assert [finding.damage for finding in verify(folder.new)] == [Damage.SIZE]
        (folder.new / name).write_bytes(folder.files[name])


def test_any_flipped_byte_of_the_manifest(folder: Folder) -> None:
    data = folder.files[MANIFEST]
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 + place % 255
        with pytest.raises(DataError, match=r"^the/manifest: "):
            decode(bytes(changed), path="the/manifest")


def test_every_damage_has_its_name(folder: Folder) -> None:
    rows = next(name for name in folder.files if name.endswith(".parquet"))
    (folder.new / rows).unlink()
    [finding] = latest_good(folder.folder, job=JOB).findings
    assert finding.damage is Damage.MISSING_FILE
    assert finding.message == f"{folder.new / rows}: is missing, the manifest lists it"
    folder.mend()
    (folder.new / rows).write_bytes(folder.files[rows] + b"?")
    assert damages(folder) == {Damage.SIZE}
    folder.mend()
    (folder.new / rows).write_bytes(b"?" + folder.files[rows][1:])
    assert damages(folder) == {Damage.CHECKSUM}
    folder.mend()
    (folder.new / MANIFEST).unlink()
    assert damages(folder) == {Damage.NO_MANIFEST}
    (folder.new / MANIFEST).mkdir()
    assert damages(folder) == {Damage.NO_MANIFEST}


def test_a_count_that_the_file_does_not_bear_out_is_noticed(folder: Folder) -> None:
    manifest = decode(folder.files[MANIFEST], path="")
    files = [replace(entry, rows=entry.rows + (entry.group == 1)) for entry in manifest.files]
    (folder.new / MANIFEST).write_bytes(encode(replace(manifest, files=tuple(files))))
    assert damages(folder) == {Damage.COUNT}
    with pytest.raises(DataError, match=r"holds \d+ rows, the manifest says \d+"):
        load(folder.new, 1)


def other_seed(group: GroupSpec) -> GroupSpec:
    return replace(group, tables=tuple(replace(table, seed=table.seed + 1) for table in group.tables))


def test_the_snapshot_of_another_job_is_passed_over(folder: Folder) -> None:
    job = replace(JOB, groups=(JOB.groups[0], other_seed(JOB.groups[1])))
    save([new_stores(job)], folder.new, job, step=6)
    assert damages(folder) == {Damage.FOREIGN_JOB}
    assert latest_good(folder.folder).good is not None
    renamed = replace(JOB, name="another", buckets=JOB.buckets * 2)
    folder.mend()
    assert verify(folder.new, job=renamed) == ()


def test_a_manifest_of_another_format_is_refused(folder: Folder) -> None:
    for text in ("", "{", "[]", "null", "{}", '{"format": 99}', '{"format": 2}', '{"format": 2, "files": [{}]}'):
        (folder.new / MANIFEST).write_text(text)
        assert damages(folder) == {Damage.MANIFEST}
        with pytest.raises(DataError, match=r"manifest\.json: "):
            Snapshot.open(folder.new)


def test_drafts_are_no_snapshots(folder: Folder) -> None:
    with SnapshotDraft.begin(folder.folder, name=snapshot_name(9), step=9) as draft:
        assert good_name(folder) == NEW
        write_all([new_stores()], draft)
    assert good_name(folder) == snapshot_name(9)
    shutil.rmtree(folder.folder / snapshot_name(9))
