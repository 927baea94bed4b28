"""Kernels that read numbers and libsvm lines out of bytes; single-threaded, no Python objects.

A number that a kernel cannot round correctly by one operation is marked SLOW and left to Arrow's parser.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from hetero.kernels.jit import inline, kernel
from hetero.records import F64, I64, U64

U8 = npt.NDArray[np.uint8]

OK: Final = 0
EMPTY: Final = 1
BAD: Final = 2
SLOW: Final = 3

_TAB, _NEWLINE, _RETURN, _SPACE, _HASH, _COLON = 9, 10, 13, 32, 35, 58
_PLUS, _MINUS, _DOT, _ZERO, _NINE = 43, 45, 46, 48, 57
_LOWER = 32
_LETTER_E = 101

_EXACT_MANTISSA = np.uint64(1 << 53)
_EXACT_POWER = 22
_POWERS = np.array([float(10**n) for n in range(_EXACT_POWER + 1)])
_MOST_DIGITS = 19
_NEAR_LIMIT = np.uint64(10**17)
_EXPONENT_LIMIT = 100_000


@inline
def _is_space(byte: int) -> bool:
    return byte in (_SPACE, _TAB, _RETURN)


@inline
def _skip_space(data: U8, at: int, stop: int) -> int:
    while at < stop and _is_space(data[at]):
        at += 1
    return at


@inline
def _trim_end(data: U8, start: int, stop: int) -> int:
    while stop > start and _is_space(data[stop - 1]):
        stop -= 1
    return stop


@inline
def _is_word(data: U8, start: int, stop: int, word: bytes) -> bool:
    if stop - start != len(word):
        return False
    equal = 0
    for i in range(len(word)):
        equal += (data[start + i] | _LOWER) == word[i]
    return equal == len(word)


@inline
def _float(data: U8, start: int, stop: int) -> tuple[float, int]:
    """Value and status of [sign] digits [. digits] [e [sign] digits], inf, infinity or nan; spaces may surround.

    Exact when mantissa <= 2**53 and |power of ten| <= 22: both are then floats, and one multiplication or
    division rounds once (W. Clinger, "How to read floating point numbers accurately", 1990).
    """
    at = _skip_space(data, start, stop)
    stop = _trim_end(data, at, stop)
    if at == stop:
        return 0.0, EMPTY
    negative = data[at] == _MINUS
    if negative or data[at] == _PLUS:
        at += 1
    if _is_word(data, at, stop, b"inf") or _is_word(data, at, stop, b"infinity"):
        return (-np.inf if negative else np.inf), OK
    if _is_word(data, at, stop, b"nan"):
        return np.nan, OK
    mantissa, digits, power, seen = np.uint64(0), 0, 0, 0
    point = False
    while at < stop:
        byte = data[at]
        if _ZERO <= byte <= _NINE:
            seen += 1
            if digits > 0 or byte != _ZERO:
                digits += 1
            if digits <= _MOST_DIGITS:
                mantissa = mantissa * np.uint64(10) + np.uint64(byte - _ZERO)
            if point:
                power -= 1
        elif byte == _DOT and not point:
            point = True
        else:
            break
        at += 1
    if seen == 0:
        return 0.0, BAD
    if at < stop:
        exponent, status = _exponent(data, at, stop)
        if status != OK:
            return 0.0, status
        power += exponent
    if mantissa == 0:
        return (-0.0 if negative else 0.0), OK
    if digits > _MOST_DIGITS or mantissa > _EXACT_MANTISSA or abs(power) > _EXACT_POWER:
        return 0.0, SLOW
    value = float(mantissa)
    value = value / _POWERS[-power] if power < 0 else value * _POWERS[power]
    return (-value if negative else value), OK


@inline
def _exponent(data: U8, at: int, stop: int) -> tuple[int, int]:
    """Value and status of `e [sign] digits` that fill data[at:stop]."""
    if (data[at] | _LOWER) != _LETTER_E:
        return 0, BAD
    at += 1
    negative = at < stop and data[at] == _MINUS
    if at < stop and (negative or data[at] == _PLUS):
        at += 1
    if at == stop:
        return 0, BAD
    exponent = 0
    while at < stop:
        if not _ZERO <= data[at] <= _NINE:
            return 0, BAD
        exponent = min(exponent * 10 + (int(data[at]) - _ZERO), _EXPONENT_LIMIT)
        at += 1
    return (-exponent if negative else exponent), OK


@inline
def _integer(data: U8, start: int, stop: int) -> tuple[np.uint64, int]:
    """Value and status of [sign] digits in [-2**63, 2**64), spaces around allowed; negatives wrap."""
    at = _skip_space(data, start, stop)
    stop = _trim_end(data, at, stop)
    value = np.uint64(0)
    if at == stop:
        return value, EMPTY
    negative = data[at] == _MINUS
    if negative or data[at] == _PLUS:
        at += 1
    if at == stop:
        return value, BAD
    limit = np.uint64(1 << 63) if negative else np.uint64(0xFFFFFFFFFFFFFFFF)
    while at < stop:
        byte = data[at]
        if not _ZERO <= byte <= _NINE:
            return value, BAD
        digit = np.uint64(byte - _ZERO)
        if value >= _NEAR_LIMIT and value > (limit - digit) // np.uint64(10):
            return value, BAD
        value = value * np.uint64(10) + digit
        at += 1
    return (np.uint64(0) - value if negative else value), OK


@kernel
def parse_floats(data: U8, starts: I64, stops: I64, values: F64, status: U8) -> None:
    """values[i], status[i] = the number in data[starts[i]:stops[i]]; a value counts only where status is OK.

    data: uint8 [bytes]. starts, stops: int64 [N]. values: float64 [N] and status: uint8 [N], written.
    """
    for i in range(values.size):
        value, state = _float(data, starts[i], stops[i])
        values[i] = value
        status[i] = state


@kernel
def parse_integers(data: U8, starts: I64, stops: I64, values: U64, status: U8) -> None:
    """values[i], status[i] = the 64-bit integer in data[starts[i]:stops[i]], negatives in two's complement.

    data: uint8 [bytes]. starts, stops: int64 [N]. values: uint64 [N] and status: uint8 [N], written.
    """
    for i in range(values.size):
        value, state = _integer(data, starts[i], stops[i])
        values[i] = value
        status[i] = state


@inline
def _token_end(data: U8, at: int, stop: int) -> int:
    while at < stop and not _is_space(data[at]):
        at += 1
    return at


@inline
def _find(data: U8, byte: int, at: int, stop: int) -> int:
    while at < stop and data[at] != byte:
        at += 1
    return at


@kernel
def scan_libsvm(data: U8, rows: I64, offsets: I64, tokens: I64) -> int:
    """Finds the parts of lines `label index:value index:value ... [# comment]`; returns the number of rows.

    data: uint8 [bytes], whole lines. rows: int64 [lines, 4], per row: 0-based line, start and stop of the
    label, and where a token stands that is not index:value, or -1 (such a row keeps no tokens). offsets: int64
    [lines + 1]: row r owns tokens[offsets[r]:offsets[r + 1]]. tokens: int64 [colons, 3], per token: where the
    index starts, its colon, and where the value stops. Blank lines and lines of comment make no row.
    """
    row, token, line, at = 0, 0, 0, 0
    offsets[0] = 0
    while at < data.size:
        line_end = _find(data, _NEWLINE, at, data.size)
        stop = _find(data, _HASH, at, line_end)
        at = _skip_space(data, at, stop)
        if at < stop:
            end = _token_end(data, at, stop)
            rows[row, 0], rows[row, 1], rows[row, 2], rows[row, 3] = line, at, end, -1
            at = _skip_space(data, end, stop)
            while at < stop:
                end = _token_end(data, at, stop)
                colon = _find(data, _COLON, at, end)
                if colon == at or colon + 1 >= end:
                    rows[row, 3] = at
                    token = offsets[row]
                    break
                tokens[token, 0], tokens[token, 1], tokens[token, 2] = at, colon, end
                token += 1
                at = _skip_space(data, end, stop)
            row += 1
            offsets[row] = token
        line += 1
        at = line_end + 1
    return row
