"""The layers towers are made of: multi-layer perceptron and the linear (wide) part."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from torch import Tensor, bfloat16, compiler, float32, get_autocast_dtype, is_autocast_enabled, nn, zeros

from hetero.errors import TowerError
from hetero.towers.arguments import choice, probability, sizes
from hetero.towers.embeddings import Embeddings, LookupInput, TowerInputs
from hetero.towers.fields import concat_lookups
from hetero.towers.relu_layers import relu_layers
from hetero.towers.relu_layers_bf16 import fits_bf16, relu_layers_bf16


class Activation(Enum):
    """Activations by the names job files use."""

    RELU = "relu"
    LEAKY_RELU = "leaky_relu"
    PRELU = "prelu"
    SIGMOID = "sigmoid"
    TANH = "tanh"
    GELU = "gelu"
    SILU = "silu"
    NONE = "none"


class Norm(Enum):
    """Normalisation between a layer and its activation. BATCH couples the rows of a batch: one tower only."""

    NONE = "none"
    LAYER = "layer"
    BATCH = "batch"


_ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    Activation.RELU: nn.ReLU,
    Activation.LEAKY_RELU: nn.LeakyReLU,
    Activation.PRELU: nn.PReLU,
    Activation.SIGMOID: nn.Sigmoid,
    Activation.TANH: nn.Tanh,
    Activation.GELU: nn.GELU,
    Activation.SILU: nn.SiLU,
    Activation.NONE: nn.Identity,
}


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer with Xavier-normal weights (Glorot and Bengio 2010) and zero bias."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_normal_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class MLP(nn.Module):
    """Layers linear -> norm -> activation -> dropout, then, with `output`, one plain linear layer.

    [..., inputs] -> [..., width]; `width` is the last size. Raises TowerError for arguments it does not know.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        *,
        output: int | None = None,
        activation: str = "relu",
        dropout: float = 0.0,
        norm: str = "none",
    ) -> None:
        super().__init__()
        act, normalisation = choice("activation", activation, Activation), choice("norm", norm, Norm)
        rate = probability("dropout", dropout)
        layers: list[nn.Module] = []
        width = inputs
        for size in sizes("hidden", hidden):
            layers.append(linear(width, size))
            if normalisation is not Norm.NONE:
                layers.append(nn.LayerNorm(size) if normalisation is Norm.LAYER else nn.BatchNorm1d(size))
            layers.append(_ACTIVATIONS[act]())
            if rate:
                layers.append(nn.Dropout(rate))
            width = size
        if output is not None:
            layers.append(linear(width, output))
            width = output
        self.width = width
        self.layers = nn.Sequential(*layers)
        self._has_single_last = output == 1
        self._is_plain = (
            len(hidden) > 0
            and act is Activation.RELU
            and normalisation is Norm.NONE
            and not rate
            and output in (None, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        on_cpu = x.device.type == "cpu" and not compiler.is_exporting()  # an exported graph holds no kernels of ours
        if self._is_plain and on_cpu and x.dim() == 2 and x.dtype is float32:
            linears = [layer for layer in self.layers if isinstance(layer, nn.Linear)]
            parameters = [parameter for layer in linears for parameter in (layer.weight, layer.bias)]
            if not is_autocast_enabled("cpu"):
                return relu_layers(x, parameters, single_last=self._has_single_last)
            if get_autocast_dtype("cpu") is bfloat16 and fits_bf16(parameters, single_last=self._has_single_last):
                return relu_layers_bf16(x, parameters, single_last=self._has_single_last)
        out: Tensor = self.layers(x)
        return out


class LinearPart(nn.Module):
    """bias + the sum of all dim-1 lookups + a linear function of the dense features: logits [B].

    The lookups' weights live in the tables; only the bias and the dense weights, which begin at 0, live here.
    """

    def __init__(self, inputs: TowerInputs) -> None:
        super().__init__()
        self.wide = inputs.wide
        self.bias = nn.Parameter(zeros(1))
        self.dense_weight = nn.Parameter(zeros(inputs.dense)) if inputs.dense else None

    def forward(self, dense: Tensor, embeddings: Embeddings) -> Tensor:
        logit = self.bias.expand(dense.shape[0])
        if self.dense_weight is not None:
            logit = logit + dense @ self.dense_weight
        return add_wide(logit, embeddings, self.wide)


def add_wide(logit: Tensor, embeddings: Embeddings, wide: Sequence[LookupInput]) -> Tensor:
    """Add the values of all dim-1 lookups to logits [B]; a dim-1 sequence adds its mean."""
    return logit + concat_lookups(embeddings, wide).sum(1) if wide else logit


def refuse_deep(inputs: TowerInputs, *, tower: str) -> None:
    """Raise TowerError when there are lookups a linear tower cannot use."""
    if inputs.deep:
        named = ", ".join(f"{lookup.name} (dim {lookup.dim})" for lookup in inputs.deep)
        raise TowerError(
            f"{tower} uses lookups of dim 1 only, but the job also has {named}; set their dim to 1 "
            "or choose a tower with a deep part"
        )
