"""What a tower's forward pass gives: logits, and beside them, where it learns more than the label, further losses."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from hetero.errors import TowerError


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerOutput:
    """logits float [B], of the job's label. tasks: logits float [B, K] of its further labels, in the job's order. side:
    float [B], a loss of the tower's own for each row, weighted already, added to the row's loss; while training alone.
    parts: logits float [B, P] of the job's label, each by a part of the model alone, whose losses are added with
    `part_weight`; while training alone.
    """

    logits: Tensor
    tasks: Tensor | None = None
    side: Tensor | None = None
    parts: Tensor | None = None
    part_weight: float = 0.0


def check_output(output: object, rows: int, *, tasks: int = 0) -> TowerOutput:
    """A forward pass's result with logits [B]. Raises TowerError unless all of it is of the shapes that `rows` and the
    job's number of further labels ask for."""
    if not isinstance(output, TowerOutput):
        output = TowerOutput(logits=check_logits(output, rows))
    found = None if output.tasks is None else tuple(output.tasks.shape)
    if found != ((rows, tasks) if tasks else None):
        raise TowerError(
            f"the tower returned {'no logits' if found is None else f'logits of shape {list(found)}'} for the job's "
            f"{tasks} further labels (data.tasks) and a batch of {rows} rows; it must return TowerOutput(logits=..., "
            f"tasks=...) with tasks of shape [{rows}, {tasks}], or none where there are no further labels"
        )
    if output.side is not None and tuple(output.side.shape) != (rows,):
        raise TowerError(f"the tower returned a side loss of shape {list(output.side.shape)}; it must be [{rows}]")
    if output.parts is not None and (output.parts.dim() != 2 or len(output.parts) != rows):
        raise TowerError(f"the tower returned logits of parts of shape {list(output.parts.shape)}; wanted [{rows}, P]")
    return replace(output, logits=check_logits(output.logits, rows))


def check_logits(logits: object, rows: int) -> Tensor:
    """The tower's result as logits [B]. Raises TowerError unless it is a float tensor [rows] or [rows, 1]."""
    if not isinstance(logits, Tensor):
        raise TowerError(
            f"the tower returned {type(logits).__name__}; it must return a tensor of logits, one per row: "
            f"[{rows}] or [{rows}, 1]"
        )
    if tuple(logits.shape) not in {(rows,), (rows, 1)}:
        raise TowerError(
            f"the tower returned shape {list(logits.shape)} for a batch of {rows} rows; it must return "
            f"logits, [{rows}] or [{rows}, 1]"
        )
    if not logits.dtype.is_floating_point:
        raise TowerError(f"the tower returned {logits.dtype}; logits must be floating point")
    return logits.reshape(rows)
