"""Rows shaped like Criteo's log, each value a function of (seed, row, column), so that any range can be made alone.

Contract. A row's draws are the SplitMix64 sequence that starts at mix64(row ^ mix64(seed)), one draw a column:

- dense j: log1p(exp(z)), z roughly standard normal: what log1p makes of a log-normal count;
- id f: a rank by Zipf's law (below), and its key mix64((f + 1) << 40 | rank): a bijection of the 64-bit integers, so
  keys are raw 64-bit, the hot ones do not lie together, no two columns share one, and `ranks_of` leads back;
- label: 1 with probability sigmoid(BIAS + sum of the hidden weights of its keys + sum of weight x (dense - its mean)).

Hidden weights are hashes of (seed, key) or (seed, dense column). "Roughly normal" is the sum of the four 16-bit parts
of a draw, scaled to mean 0 and variance 1 (Irwin-Hall, n = 4); it ends at +-3.46.

Zipf's law is the continuous one: with density ~ x ** -s on [1, C + 1), rank r has the mass between r + 1 and r + 2. The
inverse of its cumulative function at u is (1 + u ((C + 1) ** (1 - s) - 1)) ** (1 / (1 - s)), for s = 1 (C + 1) ** u.

Logarithms and powers are series of plain IEEE operations in float64 instead of the C library's: the same bits on every
machine, and the compiler turns them into vector code (measured: 7 ns an id against 22 ns with the library's pow).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero.kernels.jit import inline, kernel
from hetero.kernels.mix import GOLDEN, mix64, mix64_reference
from hetero.records import F32, F64, I64, U64

DENSE = 13
SPARSE = 26
BIAS = -1.1
KEY_SCALE = 0.35
DENSE_SCALE = 0.5
DENSE_MEAN = 0.80687
HARMONIC = 1e-9
"""Exponents closer to 1 than this are taken as 1."""
MAX_CARDINALITY = 1 << 40

_BLOCK = 1024
_RANK_BITS = np.uint64(40)
_LABEL = DENSE + SPARSE
_PART = np.uint64((1 << 16) - 1)
_PARTS_MEAN = np.int64(2 * 65535)
_PARTS_UNIT = float(np.sqrt(3.0 / ((1 << 32) - 1)))
_UNIT = 1.0 / (1 << 53)
_FIRST_INVERSE = np.uint64(0x96DE1B173F119089)  # of the factors of mix64, modulo 2**64
_SECOND_INVERSE = np.uint64(0x319642B2D24D8EC3)

_LN2 = 0.6931471805599453
_LOG2E = 1.0 / _LN2
_SQRT_HALF_BITS = np.uint64(0x3FE6A09E667F3BCD)
_POWERS = [1.0]
for _k in range(1, 13):
    _POWERS.append(_POWERS[-1] * _LN2 / _k)
_EXP2 = tuple(_POWERS)
_LOG2 = tuple(2.0 * _LOG2E / (2 * k + 1) for k in range(10))


@dataclass(frozen=True, slots=True)
class SyntheticRows:
    """Columns of n rows. dense: float32 [DENSE, n]. keys: uint64 [SPARSE, n]. labels: float32 [n], 0 or 1.
    chances: float64 [n], the planted probability of label 1."""

    dense: F32
    keys: U64
    labels: F32
    chances: F64

    @classmethod
    def empty(cls, rows: int) -> SyntheticRows:
        """Columns to be filled."""
        keys = np.empty((SPARSE, rows), np.uint64)
        return cls(np.empty((DENSE, rows), np.float32), keys, np.empty(rows, np.float32), np.empty(rows, np.float64))

    def head(self, rows: int) -> SyntheticRows:
        """The first rows, without a copy."""
        return SyntheticRows(self.dense[:, :rows], self.keys[:, :rows], self.labels[:rows], self.chances[:rows])


@inline
def log2(x: float) -> float:
    """Logarithm to base 2 of a positive normal float64, to 1e-15 absolute (relative above 1).

    x = m 2**e with m in [sqrt(1/2), sqrt(2)); log2 m = 2 / ln 2 x atanh(f), f = (m - 1) / (m + 1), by its series.
    """
    bits = np.float64(x).view(np.uint64)
    exponent = np.int64(bits - _SQRT_HALF_BITS) >> np.int64(52)
    mantissa_bits = np.uint64(bits - (np.uint64(exponent) << np.uint64(52)))
    mantissa = mantissa_bits.view(np.float64)
    f = (mantissa - 1.0) / (mantissa + 1.0)
    square = f * f
    series = _LOG2[9]
    for k in range(8, -1, -1):
        series = series * square + _LOG2[k]
    return np.float64(exponent) + series * f


@inline
def exp2(y: float) -> float:
    """2 ** y for |y| below 1000, to 1e-15 relative: the exponential's series on the fraction in [-1/2, 1/2]."""
    whole = np.floor(y + 0.5)
    fraction = y - whole
    series = _EXP2[12]
    for k in range(11, -1, -1):
        series = series * fraction + _EXP2[k]
    power_bits = np.uint64(np.uint64(np.int64(whole) + np.int64(1023)) << np.uint64(52))
    return series * power_bits.view(np.float64)


@inline
def _unit(draw: np.uint64) -> float:
    """A float64 in [0, 1) from the top 53 bits."""
    return np.float64(np.int64(draw >> np.uint64(11))) * _UNIT


@inline
def _normal(draw: np.uint64) -> float:
    """Roughly standard normal: the sum of four 16-bit parts, scaled."""
    total = (draw & _PART) + (draw >> np.uint64(16) & _PART) + (draw >> np.uint64(32) & _PART) + (draw >> np.uint64(48))
    return np.float64(np.int64(total) - _PARTS_MEAN) * _PARTS_UNIT


@inline
def _fill_dense(states: U64, column: int, weight: float, values: F32, at: int, rows: int, logits: F64) -> None:
    """One dense column of a block: values[at : at + rows], and its part of the logits."""
    step = np.uint64(column + 1) * GOLDEN
    for i in range(rows):
        value = np.float32(log2(1.0 + exp2(_normal(mix64(states[i] + step)) * _LOG2E)) * _LN2)
        values[at + i] = value
        logits[i] += weight * (np.float64(value) - DENSE_MEAN)


@inline
def _fill_keys(
    states: U64,
    column: int,
    cardinality: int,
    exponent: float,
    mixed_weights: np.uint64,
    keys: U64,
    at: int,
    rows: int,
    logits: F64,
) -> None:
    """One column of ids of a block: keys[at : at + rows], and its part of the logits."""
    step = np.uint64(DENSE + column + 1) * GOLDEN
    tag = np.uint64(column + 1) << _RANK_BITS
    octaves = log2(cardinality + 1.0)
    harmonic = abs(1.0 - exponent) < HARMONIC
    power = 1.0 - exponent
    reach = exp2(max(octaves * power, -1000.0)) - 1.0
    inverse = 0.0 if harmonic else 1.0 / power
    for i in range(rows):
        u = _unit(mix64(states[i] + step))
        height = u * octaves if harmonic else log2(1.0 + u * reach) * inverse
        rank = min(np.int64(exp2(height)) - np.int64(1), np.int64(cardinality - 1))
        key = mix64(tag | np.uint64(rank))
        keys[at + i] = key
        logits[i] += KEY_SCALE * _normal(mix64(key ^ mixed_weights))


@inline
def _fill_labels(states: U64, labels: F32, chances: F64, at: int, rows: int, logits: F64) -> None:
    step = np.uint64(_LABEL + 1) * GOLDEN
    for i in range(rows):
        chance = 1.0 / (1.0 + exp2(-logits[i] * _LOG2E))
        chances[at + i] = chance
        labels[at + i] = np.float32(1.0) if _unit(mix64(states[i] + step)) < chance else np.float32(0.0)


@kernel
def fill_rows(
    seed: np.uint64,
    cardinalities: I64,
    exponent: float,
    first: int,
    at: int,
    count: int,
    dense: F32,
    keys: U64,
    labels: F32,
    chances: F64,
) -> None:
    """Make rows first .. first + count of the stream at positions at .. at + count of the columns.

    seed: any uint64. cardinalities: int64 [SPARSE], 1 to 2**40 each. exponent: Zipf's s, 0 (uniform) or above.
    dense: float32 [DENSE, n]. keys: uint64 [SPARSE, n]. labels: float32 [n], 0 or 1. chances: float64 [n], the
    planted probability of label 1.
    """
    mixed_rows = mix64(seed)
    mixed_weights = mix64(seed + GOLDEN)
    states = np.empty(_BLOCK, np.uint64)
    logits = np.empty(_BLOCK, np.float64)
    for start in range(0, count, _BLOCK):
        rows = min(_BLOCK, count - start)
        for i in range(rows):
            states[i] = mix64(np.uint64(first + start + i) ^ mixed_rows)
            logits[i] = BIAS
        for j in range(DENSE):
            weight = DENSE_SCALE * _normal(mix64(mixed_weights + np.uint64(j + 1) * GOLDEN))
            _fill_dense(states, j, weight, dense[j], at + start, rows, logits)
        for f in range(SPARSE):
            _fill_keys(states, f, cardinalities[f], exponent, mixed_weights, keys[f], at + start, rows, logits)
        _fill_labels(states, labels, chances, at + start, rows, logits)


def ranks_of(keys: U64) -> I64:
    """Ranks of keys that `fill_rows` made: int64, shaped as `keys`, 0 for the most frequent key of its column."""
    tags = np.array(keys, np.uint64)
    tags ^= (tags >> np.uint64(31)) ^ (tags >> np.uint64(62))
    tags *= _SECOND_INVERSE
    tags ^= (tags >> np.uint64(27)) ^ (tags >> np.uint64(54))
    tags *= _FIRST_INVERSE
    tags ^= (tags >> np.uint64(30)) ^ (tags >> np.uint64(60))
    return (tags & np.uint64(MAX_CARDINALITY - 1)).astype(np.int64)


def chances_reference(dense: F32, keys: U64, *, seed: int) -> F64:
    """The planted probability of label 1, float64 [n], from the columns alone: dense [DENSE, n], keys [SPARSE, n]."""
    mixed_weights = mix64_reference(np.full(1, seed, np.uint64) + GOLDEN)
    columns = np.arange(1, DENSE + 1, dtype=np.uint64) * GOLDEN
    weights = DENSE_SCALE * _normals(mix64_reference(mixed_weights + columns))
    logits = BIAS + weights @ (dense.astype(np.float64) - DENSE_MEAN)
    logits += KEY_SCALE * _normals(mix64_reference(keys ^ mixed_weights)).sum(axis=0)
    chances: F64 = 1.0 / (1.0 + np.exp(-logits))
    return chances


def rows_reference(seed: int, cardinalities: I64, exponent: float, *, first: int, rows: int) -> SyntheticRows:
    """Rows first .. first + rows of the stream in numpy, with the C library's functions. Arguments as `fill_rows`."""
    numbers = np.arange(first, first + rows, dtype=np.uint64)
    states = mix64_reference(numbers ^ mix64_reference(np.full(1, seed, np.uint64)))
    draws = mix64_reference(states + np.arange(1, _LABEL + 2, dtype=np.uint64)[:, None] * GOLDEN)
    dense = np.log1p(np.exp(_normals(draws[:DENSE]))).astype(np.float32)
    units = (draws[DENSE:] >> np.uint64(11)).astype(np.float64) * _UNIT
    ends, power = cardinalities[:, None] + 1.0, 1.0 - exponent
    if abs(power) < HARMONIC:
        heights = ends ** units[:SPARSE]
    else:
        heights = (1.0 + units[:SPARSE] * (ends**power - 1.0)) ** (1.0 / power)
    ranks = np.minimum(heights.astype(np.uint64) - np.uint64(1), (cardinalities[:, None] - 1).astype(np.uint64))
    tags = np.arange(1, SPARSE + 1, dtype=np.uint64)[:, None] << _RANK_BITS
    keys = mix64_reference(tags | ranks)
    chances = chances_reference(dense, keys, seed=seed)
    return SyntheticRows(dense, keys, (units[SPARSE] < chances).astype(np.float32), chances)


def _normals(draws: U64) -> F64:
    """Roughly standard normal numbers of draws, in numpy."""
    total = np.zeros(draws.shape, np.int64)
    for part in range(4):
        total += (draws >> np.uint64(16 * part) & _PART).astype(np.int64)
    return np.asarray((total - _PARTS_MEAN) * _PARTS_UNIT, np.float64)
