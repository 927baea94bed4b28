"""xxHash64 with seed 0: a numba kernel over packed strings, one for bytes that come in parts, and a plain Python
function, of equal values.

Keys made from strings, the key of a missing value and the seeds of tables are these hashes, so they are part
of every snapshot and never change. Source: xxHash specification (Yann Collet), section "XXH64 algorithm".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hetero.kernels.jit import inline, kernel
from hetero.records import I32, I64, U64

U8 = npt.NDArray[np.uint8]

_PRIME_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)
_PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5 = np.uint64(0x27D4EB2F165667C5)

_MASK = (1 << 64) - 1
_STRIPE = 32
_FIRST_LANES = ((int(_PRIME_1) + int(_PRIME_2)) & _MASK, int(_PRIME_2), 0, -int(_PRIME_1) & _MASK)


@inline
def _rotate(value: np.uint64, bits: np.uint64) -> np.uint64:
    return (value << bits) | (value >> (np.uint64(64) - bits))


@inline
def _load4(data: U8, at: np.uint64) -> np.uint64:
    """Little-endian uint32 at any alignment; unsigned indices let LLVM fuse the bytes into one load."""
    value = np.uint64(data[at])
    value |= np.uint64(data[at + np.uint64(1)]) << np.uint64(8)
    value |= np.uint64(data[at + np.uint64(2)]) << np.uint64(16)
    value |= np.uint64(data[at + np.uint64(3)]) << np.uint64(24)
    return value


@inline
def _load8(data: U8, at: np.uint64) -> np.uint64:
    value = np.uint64(data[at])
    value |= np.uint64(data[at + np.uint64(1)]) << np.uint64(8)
    value |= np.uint64(data[at + np.uint64(2)]) << np.uint64(16)
    value |= np.uint64(data[at + np.uint64(3)]) << np.uint64(24)
    value |= np.uint64(data[at + np.uint64(4)]) << np.uint64(32)
    value |= np.uint64(data[at + np.uint64(5)]) << np.uint64(40)
    value |= np.uint64(data[at + np.uint64(6)]) << np.uint64(48)
    value |= np.uint64(data[at + np.uint64(7)]) << np.uint64(56)
    return value


@inline
def _round(lane: np.uint64, word: np.uint64) -> np.uint64:
    return _rotate(lane + word * _PRIME_2, np.uint64(31)) * _PRIME_1


@inline
def _merge(state: np.uint64, lane: np.uint64) -> np.uint64:
    return (state ^ _round(np.uint64(0), lane)) * _PRIME_1 + _PRIME_4


@inline
def _stripes(data: U8, start: np.uint64, stop: np.uint64) -> np.uint64:
    """State after all whole stripes of 32 bytes of data[start:stop], which holds at least one."""
    lane1 = _PRIME_1 + _PRIME_2
    lane2 = _PRIME_2
    lane3 = np.uint64(0)
    lane4 = np.uint64(0) - _PRIME_1
    at = start
    while at + np.uint64(32) <= stop:
        lane1 = _round(lane1, _load8(data, at))
        lane2 = _round(lane2, _load8(data, at + np.uint64(8)))
        lane3 = _round(lane3, _load8(data, at + np.uint64(16)))
        lane4 = _round(lane4, _load8(data, at + np.uint64(24)))
        at += np.uint64(32)
    state = _rotate(lane1, np.uint64(1)) + _rotate(lane2, np.uint64(7))
    state += _rotate(lane3, np.uint64(12)) + _rotate(lane4, np.uint64(18))
    return _merge(_merge(_merge(_merge(state, lane1), lane2), lane3), lane4)


@inline
def _hash(data: U8, start: np.uint64, stop: np.uint64) -> np.uint64:
    length = stop - start
    at = start
    if length >= np.uint64(32):
        state = _stripes(data, start, stop)
        at += length & ~np.uint64(31)
    else:
        state = _PRIME_5
    state += length
    while at + np.uint64(8) <= stop:
        state ^= _round(np.uint64(0), _load8(data, at))
        state = _rotate(state, np.uint64(27)) * _PRIME_1 + _PRIME_4
        at += np.uint64(8)
    if at + np.uint64(4) <= stop:
        state ^= _load4(data, at) * _PRIME_1
        state = _rotate(state, np.uint64(23)) * _PRIME_2 + _PRIME_3
        at += np.uint64(4)
    while at < stop:
        state ^= np.uint64(data[at]) * _PRIME_5
        state = _rotate(state, np.uint64(11)) * _PRIME_1
        at += np.uint64(1)
    state = (state ^ (state >> np.uint64(33))) * _PRIME_2
    state = (state ^ (state >> np.uint64(29))) * _PRIME_3
    return state ^ (state >> np.uint64(32))


@kernel
def hash_slices(data: U8, offsets: I32 | I64, out: U64) -> None:
    """out[i] = xxHash64 of the bytes data[offsets[i]:offsets[i + 1]], the layout of Arrow's strings.

    data: uint8 [bytes]. offsets: int32 or int64 [N + 1], not decreasing, within data. out: uint64 [N].
    """
    for i in range(out.size):
        out[i] = _hash(data, np.uint64(offsets[i]), np.uint64(offsets[i + 1]))


@kernel
def _add_stripes(data: U8, lanes: U64) -> None:
    """Take data, whole stripes, into the four lanes."""
    lane1, lane2, lane3, lane4 = lanes[0], lanes[1], lanes[2], lanes[3]
    stop = np.uint64(len(data))
    at = np.uint64(0)
    while at < stop:
        lane1 = _round(lane1, _load8(data, at))
        lane2 = _round(lane2, _load8(data, at + np.uint64(8)))
        lane3 = _round(lane3, _load8(data, at + np.uint64(16)))
        lane4 = _round(lane4, _load8(data, at + np.uint64(24)))
        at += np.uint64(32)
    lanes[0], lanes[1], lanes[2], lanes[3] = lane1, lane2, lane3, lane4


class StreamHash:
    """xxHash64 of bytes that come in parts of any size."""

    def __init__(self) -> None:
        self._lanes = np.array(_FIRST_LANES, np.uint64)
        self._rest = b""
        self._length = 0

    def update(self, data: bytes | memoryview) -> None:
        """Take further bytes."""
        view = memoryview(data).cast("B")
        self._length += len(view)
        if self._rest:
            missing = _STRIPE - len(self._rest)
            self._rest += bytes(view[:missing])
            view = view[missing:]
            if len(self._rest) < _STRIPE:
                return
            self._take(self._rest)
        whole = len(view) // _STRIPE * _STRIPE
        if whole:
            self._take(view[:whole])
        self._rest = bytes(view[whole:])

    def value(self) -> int:
        """The hash of all bytes so far, in [0, 2**64)."""
        lanes = [int(lane) for lane in self._lanes]
        state = _plain_joined(lanes) if self._length >= _STRIPE else int(_PRIME_5)
        return _plain_end((state + self._length) & _MASK, self._rest)

    def _take(self, stripes: bytes | memoryview) -> None:
        data = np.frombuffer(stripes, np.uint8)
        data.flags.writeable = False
        _add_stripes(data, self._lanes)


def hash_text(text: str | bytes) -> int:
    """xxHash64 of `text` (a string as UTF-8), in [0, 2**64): the plain reference, without compilation."""
    data = text.encode() if isinstance(text, str) else text
    state, at = _plain_stripes(data)
    return _plain_end((state + len(data)) & _MASK, data[at:])


def _plain_end(state: int, data: bytes) -> int:
    """What the bytes behind the last whole stripe make of a state."""
    at = 0
    prime1, prime2, prime3 = int(_PRIME_1), int(_PRIME_2), int(_PRIME_3)
    while at + 8 <= len(data):
        state ^= _plain_round(0, int.from_bytes(data[at : at + 8], "little"))
        state = (_plain_rotate(state, 27) * prime1 + int(_PRIME_4)) & _MASK
        at += 8
    if at + 4 <= len(data):
        state ^= int.from_bytes(data[at : at + 4], "little") * prime1 & _MASK
        state = (_plain_rotate(state, 23) * prime2 + prime3) & _MASK
        at += 4
    for byte in data[at:]:
        state ^= byte * int(_PRIME_5) & _MASK
        state = _plain_rotate(state, 11) * prime1 & _MASK
    state = (state ^ (state >> 33)) * prime2 & _MASK
    state = (state ^ (state >> 29)) * prime3 & _MASK
    return state ^ (state >> 32)


def _plain_rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _plain_round(lane: int, word: int) -> int:
    return _plain_rotate((lane + word * int(_PRIME_2)) & _MASK, 31) * int(_PRIME_1) & _MASK


def _plain_stripes(data: bytes) -> tuple[int, int]:
    """State after the whole stripes of 32 bytes, and where they end."""
    stop = len(data) & ~31
    if stop == 0:
        return int(_PRIME_5), 0
    lanes = list(_FIRST_LANES)
    for at in range(0, stop, 8):
        lane = at // 8 % 4
        lanes[lane] = _plain_round(lanes[lane], int.from_bytes(data[at : at + 8], "little"))
    return _plain_joined(lanes), stop


def _plain_joined(lanes: list[int]) -> int:
    """The state that four lanes make."""
    state = sum(_plain_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
    for lane in lanes:
        state = ((state ^ _plain_round(0, lane)) * int(_PRIME_1) + int(_PRIME_4)) & _MASK
    return state
