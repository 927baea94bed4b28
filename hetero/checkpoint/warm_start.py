"""Begin with the rows of another job's snapshot: tables are matched by name, rows take the place of first values.

Where width and optimizer agree a row comes whole; where only the dimension does, its weights come and its optimizer
begins anew. The two jobs' numbers of tables, groups, buckets and servers, and their seeds, may differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hetero.checkpoint.manifest import MANIFEST, FileKind, GroupRecord
from hetero.checkpoint.rows import read_part
from hetero.checkpoint.search import latest_good
from hetero.checkpoint.snapshot import Snapshot
from hetero.embedding.answers import Create
from hetero.embedding.policies.days import bare
from hetero.embedding.rows import Rows
from hetero.errors import DataError, UserError
from hetero.keys.routing import Router
from hetero.optim.definition import row_width
from hetero.records import F32, I32, JobSpec, KeySet, WarmStartSpec


@dataclass(frozen=True, slots=True)
class _Move:
    """A table of the snapshot and its place in the job. columns: floats of its rows to take: weights, and the
    optimizer's state where that is the same; statistics begin anew, as their days are another run's."""

    group: int
    table: int
    columns: int


def open_warm_start(job: JobSpec) -> Snapshot:
    """The snapshot to begin with: the folder itself, or a run's model in it, or its newest whole snapshot.

    Raises UserError when there is none, or when the job wants tables that it has not, or not of their dimension.
    """
    spec = job.warm_start
    assert spec is not None
    snapshot = _found(Path(spec.path).expanduser())
    _check(snapshot, job, spec)
    return snapshot


def _found(folder: Path) -> Snapshot:
    for candidate in (folder, folder / "model"):
        if (candidate / MANIFEST).is_file():
            return Snapshot.open(candidate)
    found = latest_good(folder / "snapshots").good if (folder / "snapshots").is_dir() else None
    if found is None:
        raise UserError(f"warm_start.from: {folder} holds no model and no whole snapshot; give a run's folder")
    return found


def _check(snapshot: Snapshot, job: JobSpec, spec: WarmStartSpec) -> None:
    theirs = {table.name: group for group in snapshot.manifest.job.groups for table in group.tables}
    for name, dim in ((table.name, group.dim) for group in job.groups for table in group.tables):
        if name not in theirs:
            if spec.tables is not None and name in spec.tables:
                raise UserError(f"warm_start.tables: {snapshot.path} has no table {name} (it has {', '.join(theirs)})")
        elif _wanted(name, spec.tables) and theirs[name].dim != dim:
            raise UserError(
                f"warm_start.tables: {name} has dim {theirs[name].dim} in {snapshot.path}, {dim} in the job; leave it "
                "out, or give it that dim"
            )


def warm_rows(stores: Sequence[Rows], job: JobSpec, snapshot: Snapshot, *, server: int, owners: I32) -> int:
    """Put the rows of the tables that the job wants, of this server's buckets, into its stores; their number.

    Raises DataError for a damaged snapshot.
    """
    router = Router(job.groups, job.buckets, owners)
    loaded = 0
    for part in snapshot.chain():
        if part.manifest.of_kind(FileKind.TOMBSTONES):
            raise DataError(f"{part.path}: tells deletions since another snapshot; warm-start from one that is whole")
        for source, keys, rows in _wanted_rows(part, job):
            mine = router.route(keys)[server]
            _put(stores[source.group], job, source, mine.keys, rows[mine.positions])
            loaded += len(mine.keys)
    return loaded


def _wanted_rows(part: Snapshot, job: JobSpec) -> Iterator[tuple[_Move, KeySet, F32]]:
    """Rows table by table, under their numbers in the job."""
    for entry in part.manifest.of_kind(FileKind.ROWS):
        assert entry.group is not None
        moves = _moves(part.manifest.job.groups[entry.group], job)
        if not moves:
            continue
        for chunk in read_part(part, entry):
            for old, move in moves.items():
                at = np.flatnonzero(chunk.keys.tables == old)
                if len(at):
                    keys = KeySet(np.full(len(at), move.table, np.uint16), chunk.keys.keys[at])
                    yield move, keys, chunk.rows[at]


def _moves(theirs: GroupRecord, job: JobSpec) -> dict[int, _Move]:
    """By number of a table in the snapshot: where its rows go, for those the job wants."""
    assert job.warm_start is not None
    places = {table.name: (number, table.index) for number, group in enumerate(job.groups) for table in group.tables}
    moves = {}
    for table in theirs.tables:
        if table.name in places and _wanted(table.name, job.warm_start.tables):
            group, index = places[table.name]
            own = job.groups[group]
            same = theirs.optimizer == own.optimizer.kind.value
            moves[table.index] = _Move(group, index, row_width(own.optimizer, own.dim) if same else own.dim)
    return moves


def _put(store: Rows, job: JobSpec, move: _Move, keys: KeySet, rows: F32) -> None:
    if rows.shape[1] != store.width or move.columns != store.width:
        bare(store).pull(keys, create=Create.YES)
        fresh = store.read_rows(keys).rows
        fresh[:, : move.columns] = rows[:, : move.columns]
        rows = fresh
    store.write_rows(keys, rows)


def _wanted(name: str, tables: tuple[str, ...] | None) -> bool:
    return tables is None or name in tables
