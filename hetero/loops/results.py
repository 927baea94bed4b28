"""What a tower's work came to. Apart from `tower`, so that roles without torch need not load it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hetero.exchange.messages import RejectedGradient
from hetero.metrics.bucketed import BucketedAuc
from hetero.records import F32, U64, Piece


@dataclass(slots=True, kw_only=True)
class StepLog:
    """What a tower's training did so far.

    joint: losses are of the joint batch, equal on every tower; otherwise this tower's shares, which add up to it.

    waits: seconds by role waited for. step_ends_t: unix seconds at the end of every step.
    started_t, first_step_t, last_step_t: unix seconds at the start of training and at the end of those steps, since
    the run was last resumed. earlier_s: seconds of training before that. stopped: by a cut, before the end of the data.
    The log of tower 0 of a resumed run begins with what all towers did before.
    """

    joint: bool = True
    losses: list[float] = field(default_factory=list)
    rows: int = 0
    rejected_rows: int = 0
    rejected_examples: list[RejectedGradient] = field(default_factory=list)
    rejected_dense: dict[str, int] = field(default_factory=dict)
    started_t: float = 0.0
    first_step_t: float | None = None
    last_step_t: float | None = None
    step_ends_t: list[float] = field(default_factory=list)
    waits: dict[str, float] = field(default_factory=dict)
    earlier_s: float = 0.0
    stopped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Predictions of one tower. labels, predictions, weights (or None) float32 [R]; gauc_ids uint64 [R] or None.

    buckets: histograms of the predictions, which several towers' merge without their rows.
    """

    labels: F32
    predictions: F32
    weights: F32 | None
    gauc_ids: U64 | None
    buckets: BucketedAuc


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredPart:
    """Predictions of one tower's batch of one step. predictions float32 [R], of the rows of `pieces` in their order.

    vectors: the text half's output, float32 [R, D] each, one a text; none where nobody asked for it.
    """

    step: int
    tower: int
    pieces: tuple[Piece, ...]
    predictions: F32
    vectors: tuple[F32, ...] = ()
