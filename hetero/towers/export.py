"""A tower as a graph that needs no code of ours: what `torch.export` is given, and what the graph takes.

    dense f32 [B, D]
    blocks[g] f32 [B, F, E]       pooled lookups of each group          ->  probabilities f32 [B]
    sequences[g][s] f32 [B, L, E], masks[g][s] bool [B, L]
    tokens[t] i32 [B, T]          of jobs with texts

B and every sequence's L are free. Inside the graph are torch's own operations alone: towers choose their plain form
while `torch.compiler.is_exporting()`, which agrees with the one they train in but for rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hetero.errors import TowerError
from hetero.records import JobSpec, Pooling
from hetero.towers.embeddings import EmbeddingLayout, Embeddings
from hetero.towers.outputs import TowerOutput

_EXAMPLE_ROWS, _EXAMPLE_LENGTH = 4, 3


class ScoringTower(nn.Module):
    """A tower from looked-up tensors to probabilities."""

    def __init__(self, module: nn.Module, layout: EmbeddingLayout) -> None:
        super().__init__()
        self.module = module
        self._layout = layout

    def forward(
        self,
        dense: Tensor,
        blocks: Sequence[Tensor],
        sequences: Sequence[Sequence[Tensor]],
        masks: Sequence[Sequence[Tensor]],
        tokens: Sequence[Tensor] = (),
    ) -> Tensor:
        embeddings = Embeddings(self._layout, blocks=blocks, sequences=sequences, masks=masks, tokens=tokens)
        found = self.module(dense, embeddings)
        logits: Tensor = found.logits if isinstance(found, TowerOutput) else found
        return torch.sigmoid(logits.float()).reshape(dense.shape[0])


def export_tower(module: nn.Module, job: JobSpec) -> torch.export.ExportedProgram:
    """The tower's graph, with its parameters, in evaluation mode; float32 on the CPU. The module's mode stays.

    Raises TowerError when the tower does what no graph can hold, such as a branch on a tensor's value.
    """
    was_training = module.training
    scoring = ScoringTower(module, EmbeddingLayout.from_job(job)).eval()
    try:
        with torch.no_grad():
            return torch.export.export(scoring, _example(job), dynamic_shapes=_free_shapes(job), strict=False)
    except Exception as error:
        first = str(error).strip().split("\n")[0]
        raise TowerError(
            f"tower {job.tower.name}: torch.export cannot make a graph of it: {type(error).__name__}: {first}; its "
            "forward must not branch on values of tensors, and must hold for any number of rows"
        ) from error
    finally:
        module.train(was_training)


def _example(job: JobSpec) -> tuple[Any, ...]:
    """Inputs to trace with; what they hold does not matter."""
    rows, length = _EXAMPLE_ROWS, _EXAMPLE_LENGTH
    blocks, sequences, masks = [], [], []
    for number, group in enumerate(job.groups):
        pooled, sequence_count = _counts(job, number)
        blocks.append(torch.zeros(rows, pooled, group.dim))
        sequences.append([torch.zeros(rows, length, group.dim) for _ in range(sequence_count)])
        masks.append([torch.ones(rows, length, dtype=torch.bool) for _ in range(sequence_count)])
    tokens = [torch.zeros(rows, text.length, dtype=torch.int32) for text in job.train.texts]
    example = (torch.zeros(rows, len(job.train.dense)), blocks, sequences, masks)
    return (*example, tokens) if tokens else example


def _free_shapes(job: JobSpec) -> tuple[Any, ...]:
    rows = torch.export.Dim("rows")
    blocks, sequences = [], []
    for number in range(len(job.groups)):
        lengths = [torch.export.Dim(f"length_{number}_{index}") for index in range(_counts(job, number)[1])]
        blocks.append({0: rows})
        sequences.append([{0: rows, 1: length} for length in lengths])
    shapes = ({0: rows}, blocks, sequences, sequences)
    return (*shapes, [{0: rows} for _ in job.train.texts]) if job.train.texts else shapes


def _counts(job: JobSpec, group: int) -> tuple[int, int]:
    """Pooled lookups and sequences of a group."""
    lookups = [lookup for lookup in job.lookups if lookup.group == group]
    sequences = sum(lookup.pooling is Pooling.NONE for lookup in lookups)
    return len(lookups) - sequences, sequences
