"""Mean and standard deviation of the columns that features standardise, in one pass over the training files."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hetero.data.columns import dense_column
from hetero.data.faults import RowFaults
from hetero.data.parse import read_blocks_of
from hetero.data.sources import list_splits
from hetero.errors import DataError
from hetero.records import F64, DataSpec, DenseTransform


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean, and sum of squared deviations from the mean of some values."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @staticmethod
    def of(values: F64) -> Moments:
        """Of float64 [n] values."""
        if not len(values):
            return Moments()
        mean = float(values.mean())
        return Moments(len(values), mean, float(np.square(values - mean).sum()))

    def merge(self, other: Moments) -> Moments:
        """Of both sets together (Chan, Golub, LeVeque 1979, "Updating formulae and a pairwise algorithm")."""
        if not self.count or not other.count:
            return other if not self.count else self
        count = self.count + other.count
        delta = other.mean - self.mean
        mean = self.mean + delta * (other.count / count)
        squares = self.squares + other.squares + delta * delta * (self.count * (other.count / count))
        return Moments(count, mean, squares)


def dense_statistics(spec: DataSpec) -> dict[str, tuple[float, float]]:
    """(mean, standard deviation) of the column of every STANDARD feature, by feature name.

    Over the values that are present and finite, before `fill`, in float64, in file order; the deviation is that of
    the population (divided by n). A constant column has deviation 1, so that it becomes 0 and not NaN.
    Raises DataError as `list_splits` does, and when a column has no value at all.
    """
    features = [f for f in spec.dense if f.transform is DenseTransform.STANDARD]
    if not features:
        return {}
    reduced = replace(
        spec, dense=tuple(features), sparse=(), texts=(), tasks=(), weight=None, gauc_column=None, shuffle=False
    )
    moments = {f.name: Moments() for f in features}
    for ref in list_splits(reduced):
        for block in read_blocks_of(ref, spec=reduced):
            for f in features:
                values, present = dense_column(block.columns[f.column], column=f.column, faults=RowFaults(block.rows))
                usable = values[present & np.isfinite(values)]
                moments[f.name] = moments[f.name].merge(Moments.of(usable))
    for f in features:
        if not moments[f.name].count:
            raise DataError(
                f"column '{f.column}' (dense feature '{f.name}') has no value in {', '.join(spec.paths)}, so it"
                " cannot be standardised; choose another transform, or leave the feature out"
            )
    return {name: (m.mean, _deviation(m)) for name, m in moments.items()}


def _deviation(moments: Moments) -> float:
    deviation = float(np.sqrt(moments.squares / moments.count))
    return deviation if deviation > 0.0 else 1.0
