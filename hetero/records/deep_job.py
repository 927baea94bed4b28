"""A deep model's job as resolved: pure data, from which every rank is constructed."""

from __future__ import annotations

from dataclasses import dataclass

from hetero.records.mesh import DeepOptimizerSpec, MeshSpec
from hetero.records.transformer import TransformerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSpec:
    """Folders of packed tokens. masking: what a masked model has hidden together (`token`, `word`, `span`), None for a
    causal one; mask_share: of its tokens. mask: the id shown for them. vocabulary: ids of the tokenizer."""

    train: str
    validation: str | None
    vocabulary: int
    masking: str | None = None
    mask_share: float = 0.15
    mask: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepJobSpec:
    """Train `model` for `steps` steps of `batch_size` sequences.

    stop_at: the step to end at, before the learning rate has come to the end of its way; None goes to the end.
    evaluate_every, snapshot_every: in steps, 0 for the end alone. validation_blocks: most blocks an evaluation reads
    before the end, spread evenly; at the end all are read. keep: snapshots kept, the newest. threads: of each rank.
    device: `cpu` or `cuda`. deadline_s: of every wait for another rank.
    """

    name: str
    seed: int
    text: TextSpec
    model: TransformerSpec
    mesh: MeshSpec
    optimizer: DeepOptimizerSpec
    batch_size: int
    steps: int
    stop_at: int | None = None
    evaluate_every: int = 0
    validation_blocks: int = 256
    snapshot_every: int = 0
    keep: int = 2
    threads: int = 1
    device: str = "cpu"
    deadline_s: float = 60.0

    @property
    def last_step(self) -> int:
        """Steps done when the run ends."""
        return self.steps if self.stop_at is None else min(self.steps, self.stop_at)

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.model.context
