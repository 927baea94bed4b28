"""libsvm files: `label index:value index:value ... [# comment]` as the columns `label` and `features`.

An index is a 64-bit integer and the key itself (its decimal text is hashed under `IdKind.STRING`); the values are
the keys' weights, none when all are 1. Lines may end with a comment.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from hetero.data.buffers import U8, Bool, bytes_view
from hetero.data.columns import Block
from hetero.data.faults import RowFaults
from hetero.data.lines import LineBlock, read_blocks
from hetero.data.numbers import float_slices, gather_text, integer_slices
from hetero.kernels.text import OK, scan_libsvm
from hetero.records import F64, I64, SplitRef

_LONGEST_TOKEN = 40
_COLON = 58


def read_libsvm(ref: SplitRef) -> Iterator[Block]:
    """The blocks of a split. Raises DataError when the file cannot be read."""
    for lines in read_blocks(ref):
        yield _block(lines)


def _block(lines: LineBlock) -> Block:
    data = bytes_view(lines.data)
    most = lines.data.count(b"\n") + 1
    rows = np.empty((most, 4), np.int64)
    offsets = np.empty(most + 1, np.int64)
    tokens = np.empty((np.count_nonzero(data == _COLON), 3), np.int64)
    count = scan_libsvm(data, rows, offsets, tokens)
    rows, offsets = rows[:count], offsets[: count + 1]
    tokens = tokens[: offsets[-1]]
    faults = RowFaults(count)
    faults.mark(rows[:, 3] >= 0, describe=lambda row: f"{_token(data, int(rows[row, 3]))} is not index:value")
    keys, index_status = integer_slices(data, _column(tokens, 0), _column(tokens, 1))
    values, value_status = float_slices(data, _column(tokens, 1) + 1, _column(tokens, 2))
    bad_values = (value_status != OK) | ~_fits_float32(values)
    for bad, what in ((index_status != OK, "a 64-bit index"), (bad_values, "a finite value")):
        _mark_tokens(bad, what=what, data=data, tokens=tokens, offsets=offsets, faults=faults)
    with np.errstate(over="ignore", invalid="ignore"):
        factors = {} if (values == 1.0).all() else {"features": values.astype(np.float32)}
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(keys))
    label = gather_text(data, _column(rows, 1), _column(rows, 2))
    return Block(
        columns={"label": label, "features": lists},
        rows=count,
        lines=rows[:, 0] + lines.first_line,
        faults=faults,
        factors=factors,
    )


def _column(array: I64, column: int) -> I64:
    return np.ascontiguousarray(array[:, column])


def _fits_float32(values: F64) -> Bool:
    return np.asarray(np.abs(values) <= np.finfo(np.float32).max)


def _mark_tokens(bad: Bool, *, what: str, data: U8, tokens: I64, offsets: I64, faults: RowFaults) -> None:
    """Marks the rows of bad tokens; the reason shows a row's first one."""
    if not bad.any():
        return
    at = np.flatnonzero(bad)
    rows = np.searchsorted(offsets, at, side="right") - 1
    first = dict(zip(rows[::-1].tolist(), at[::-1].tolist(), strict=True))
    bad_rows = np.zeros(len(offsets) - 1, np.bool_)
    bad_rows[rows] = True
    faults.mark(bad_rows, describe=lambda row: f"{_token(data, int(tokens[first[row], 0]))} does not hold {what}")


def _token(data: U8, start: int) -> str:
    """The token that starts at a byte, quoted, cut when long."""
    text = data[start : start + _LONGEST_TOKEN + 1].tobytes().split(maxsplit=1)[0]
    shown = repr(text.decode(errors="replace"))
    return shown if len(text) <= _LONGEST_TOKEN else shown + "..."
