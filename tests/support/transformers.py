"""Small transformers of the kinds that differ most."""

from __future__ import annotations

from hetero.records.transformer import MlpKind, NormKind, Objective, Positions, TransformerSpec


def bert_like(*, layers: int, width: int, kv_heads: int, hidden: int, vocabulary: int, context: int) -> TransformerSpec:
    """A masked model: learned positions, LayerNorm, a plain MLP, tied embeddings, biases; 4 heads."""
    return TransformerSpec(
        layers=layers,
        width=width,
        heads=4,
        kv_heads=kv_heads,
        hidden=hidden,
        vocabulary=vocabulary,
        context=context,
        objective=Objective.MASKED,
        positions=Positions.LEARNED,
        norm=NormKind.LAYER,
        mlp=MlpKind.PLAIN,
        tied=True,
        bias=True,
    )
