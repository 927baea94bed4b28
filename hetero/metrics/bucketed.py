"""AUC from a histogram of predictions: small, mergeable over towers and over time, and close to exact."""

from __future__ import annotations

from typing import Self

import numpy as np

from hetero.errors import ProtocolError
from hetero.metrics.auc import Values
from hetero.records import F64

DEFAULT_BUCKETS = 1 << 18


class BucketedAuc:
    """Weights of positive and of negative rows in equal buckets of the probability, 16 bytes a bucket.

    Rows of one bucket count as ties, so the error is at most half the share of (positive, negative) pairs that meet in
    a bucket, and in practice far less: below 1e-4 once predictions spread over 1,300 buckets (tested). Merging adds
    histograms: it commutes, and associates to the bit while weights are whole numbers (or share a power of two).

    positives, negatives: float64 [buckets]. left_out: rows whose prediction was NaN or outside [0, 1].
    """

    def __init__(self, buckets: int = DEFAULT_BUCKETS) -> None:
        self.positives: F64 = np.zeros(buckets)
        self.negatives: F64 = np.zeros(buckets)
        self.left_out = 0

    def update(self, labels: Values, predictions: Values, *, weights: Values | None = None) -> None:
        """Add rows. labels [R] in {0, 1}, predictions [R] probabilities, weights [R] not negative."""
        scores = np.asarray(predictions, np.float64)
        usable = (scores >= 0) & (scores <= 1)
        self.left_out += int((~usable).sum())
        is_positive = np.asarray(labels)[usable] > 0
        weight = np.ones(len(is_positive)) if weights is None else np.asarray(weights, np.float64)[usable]
        count = len(self.positives)
        bucket = np.minimum((scores[usable] * count).astype(np.int64), count - 1)
        self.positives += np.bincount(bucket, np.where(is_positive, weight, 0.0), count)
        self.negatives += np.bincount(bucket, np.where(is_positive, 0.0, weight), count)

    def merge(self, other: BucketedAuc) -> Self:
        """A new histogram of both. Raises ProtocolError when they differ in buckets."""
        if len(other.positives) != len(self.positives):
            raise ProtocolError(
                f"AUC histograms of {len(self.positives)} and {len(other.positives)} buckets cannot be merged; make "
                "all of them with one number of buckets"
            )
        merged = type(self)(len(self.positives))
        merged.positives = self.positives + other.positives
        merged.negatives = self.negatives + other.negatives
        merged.left_out = self.left_out + other.left_out
        return merged

    def value(self) -> float | None:
        """The AUC, or None without rows of both classes."""
        pairs = self.positives.sum() * self.negatives.sum()
        if pairs == 0:
            return None
        before = np.cumsum(self.negatives) - self.negatives
        return float((self.positives * (before + 0.5 * self.negatives)).sum() / pairs)
