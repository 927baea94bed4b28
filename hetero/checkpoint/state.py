"""The small state of a snapshot: cursors, clock, random state, as one JSON object of plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hetero.checkpoint.manifest import FileEntry, FileKind
from hetero.checkpoint.snapshot import Snapshot
from hetero.checkpoint.storage import Storage
from hetero.errors import DataError

STATE = "state"


def write_state(record: Mapping[str, object], *, folder: str, name: str = STATE) -> FileEntry:
    """Write `<name>.json`. Floats come back bit for bit, integers of any size too; NaN and infinity are refused.

    Raises ValueError or TypeError for a value that JSON has not, SnapshotError when the disk refuses.
    """
    data = (json.dumps(record, indent=1, allow_nan=False) + "\n").encode("utf-8")
    file = f"{name}.json"
    written = Storage(folder).write(file, data)
    return FileEntry(file=file, kind=FileKind.STATE, bytes=written.bytes, xxh64=written.xxh64)


def read_state(snapshot: Snapshot, *, name: str = STATE) -> dict[str, Any]:
    """The object in `<name>.json`. Raises DataError when it is missing or damaged."""
    file = f"{name}.json"
    data = snapshot.read(snapshot.manifest.entry(file))
    try:
        record = json.loads(data.to_pybytes().decode("utf-8"))
    except ValueError as error:
        raise DataError(f"{snapshot.file(file)}: is no JSON ({error})") from error
    if not isinstance(record, dict):
        raise DataError(f"{snapshot.file(file)}: holds {type(record).__name__}, a JSON object was expected")
    return record
