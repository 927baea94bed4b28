"""How good predictions are as probabilities. All sums in float64; weights None means 1 for every row."""

from __future__ import annotations

import numpy as np

from hetero.records import F64

# scikit-learn's `log_loss` clips to the machine epsilon of the predictions' type; towers predict in float32.
CLIP = float(np.finfo(np.float32).eps)


def log_loss(labels: F64, predictions: F64, *, weights: F64 | None = None) -> float:
    """Mean of -(y ln p + (1 - y) ln(1 - p)), p clipped to [CLIP, 1 - CLIP], in nats. Arrays [R], R > 0."""
    clipped = np.clip(predictions, CLIP, 1.0 - CLIP)
    losses = -np.where(labels > 0, np.log(clipped), np.log1p(-clipped))
    return float(np.average(losses, weights=weights))


def base_entropy(mean_label: float) -> float | None:
    """Log loss of always predicting the mean label, in nats; None for a mean of 0 or 1."""
    if not 0.0 < mean_label < 1.0:
        return None
    return -float(mean_label * np.log(mean_label) + (1.0 - mean_label) * np.log1p(-mean_label))


def normalized_entropy(logloss: float, mean_label: float) -> float | None:
    """Log loss over that of always predicting the mean label; below 1 is better than that; None with one class.

    He et al. 2014, "Practical lessons from predicting clicks on ads at Facebook", section 3, equation 1.
    """
    entropy = base_entropy(mean_label)
    return None if entropy is None else logloss / entropy


def calibration(mean_prediction: float, mean_label: float) -> float | None:
    """Mean prediction over mean label (He et al. 2014, section 3); None without positives. 1 is calibrated."""
    return mean_prediction / mean_label if mean_label > 0 else None
