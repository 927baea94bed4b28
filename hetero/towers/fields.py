"""How towers lay lookups side by side: masked means of sequences, flat vectors and stacked fields."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, cat, stack

from hetero.errors import TowerError
from hetero.towers.embeddings import Embeddings, LookupInput


def masked_mean(embeddings: Embeddings, name: str) -> Tensor:
    """The mean of a sequence over the cells that hold a row: [B, E]; zeros for an empty one.

    Cells without a row are zeros, so they need no masking in the sum.
    """
    count = embeddings.mask(name).sum(1, keepdim=True).clamp(min=1)
    return embeddings[name].sum(1) / count


def concat_lookups(embeddings: Embeddings, lookups: Sequence[LookupInput]) -> Tensor:
    """Lookups side by side, [B, sum of dims]: pooled ones in order, then the masked mean of each sequence."""
    pooled, means = _parts(embeddings, lookups)
    parts = [embeddings.concat(pooled), *means] if pooled else means
    return parts[0] if len(parts) == 1 else cat(parts, 1)


def stack_lookups(embeddings: Embeddings, lookups: Sequence[LookupInput]) -> Tensor:
    """Lookups of one width as fields, [B, F, E]: pooled ones in order, then masked means of sequences."""
    pooled, means = _parts(embeddings, lookups)
    if not pooled:
        return stack(means, 1)
    fields = embeddings.stack(pooled)
    return cat([fields, stack(means, 1)], 1) if means else fields


def deep_features(dense: Tensor, embeddings: Embeddings, lookups: Sequence[LookupInput]) -> Tensor:
    """Dense features and deep lookups side by side: [B, D + sum of dims]."""
    if not lookups:
        return dense
    deep = concat_lookups(embeddings, lookups)
    return cat([dense, deep], 1) if dense.shape[1] else deep


def deep_width(dense: int, lookups: Sequence[LookupInput]) -> int:
    """Columns of `deep_features`. Raises TowerError when there would be none."""
    width = dense + sum(lookup.dim for lookup in lookups)
    if width == 0:
        raise TowerError("the deep part has no inputs; add dense features or lookups of dim 2 or more")
    return width


def common_width(lookups: Sequence[LookupInput], *, purpose: str) -> int:
    """The one width of these lookups. Raises TowerError when there are none, or several widths."""
    widths = {lookup.dim for lookup in lookups}
    if len(widths) == 1:
        return widths.pop()
    if not widths:
        raise TowerError(f"{purpose} needs lookups of dim 2 or more; the job has none")
    named = ", ".join(f"{lookup.name}={lookup.dim}" for lookup in lookups)
    raise TowerError(f"{purpose} needs deep lookups of one dim, got {named}; give them the same `dim`")


def _parts(embeddings: Embeddings, lookups: Sequence[LookupInput]) -> tuple[list[str], list[Tensor]]:
    pooled = [lookup.name for lookup in lookups if not lookup.is_sequence]
    return pooled, [masked_mean(embeddings, lookup.name) for lookup in lookups if lookup.is_sequence]
