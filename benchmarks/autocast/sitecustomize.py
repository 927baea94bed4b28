"""On a peer's module path: every process of it multiplies matrices in bf16, as torch's autocast does, and its scores
leave torch as float32, which numpy has. The peer's own script stays as it is."""

from __future__ import annotations

from typing import Any

import torch

_numpy = torch.Tensor.numpy


def _wide(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
    return _numpy(tensor.float() if tensor.dtype is torch.bfloat16 else tensor, *arguments, **named)


torch.Tensor.numpy = _wide  # type: ignore[method-assign, assignment]
torch.set_autocast_dtype("cpu", torch.bfloat16)
torch.set_autocast_enabled("cpu", True)
torch.set_autocast_cache_enabled(False)  # the copies of weights that it keeps are dropped at the end of a block only
