"""First values of a transformer's parameters: a function of (seed, parameter's name) alone.

So a rank makes the same parameter whatever else it holds, and a model begins equal on every mesh.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor, nn

from hetero.records.transformer import TransformerSpec

_BACK_INTO_STREAM = ("attention.output.weight", "mlp.down.weight")


def initial_value(name: str, shape: torch.Size, spec: TransformerSpec, *, seed: int) -> Tensor:
    """The whole first value of a parameter, float32 on the CPU, whatever the model's dtype and device.

    Norms begin as ones, biases as zeros, matrices normal with `spec.init_std`, see there.
    """
    if len(shape) < 2:
        return torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
    generator = torch.Generator()
    generator.manual_seed(_seed_of(name, seed))
    deep = math.sqrt(2 * spec.layers) if name.endswith(_BACK_INTO_STREAM) else 1.0
    return torch.randn(shape, generator=generator) * (spec.init_std / deep)


@torch.no_grad()
def set_initial(model: nn.Module, spec: TransformerSpec, *, seed: int) -> None:
    """Give all parameters of an undivided model their first values."""
    for name, parameter in model.named_parameters():
        parameter.copy_(initial_value(name, parameter.shape, spec, seed=seed))


def _seed_of(name: str, seed: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
