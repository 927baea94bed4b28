"""Row optimizers for rows in device memory: a fused kernel where there is one, torch operations elsewhere.

The fused kernel reads and writes every row once; torch operations pass over rows several times. Where a CUDA device has
to do without the kernel, that is logged and stands in the run's summary.
"""

from __future__ import annotations

import logging
from functools import cache

import torch
from torch import Tensor

from hetero.hardware.tower_device import TowerDevice
from hetero.optim.definition import KIND, hyper_array
from hetero.optim.torch_path import update_at_
from hetero.records import RowOptimizerSpec

_LOG = logging.getLogger(__name__)


class RowUpdate:
    """`hetero.optim.torch_path.update_at_` on one device."""

    def __init__(self, spec: RowOptimizerSpec, device: torch.device) -> None:
        self._spec = spec
        self._is_fused = device.type == "cuda" and why_not_fused() is None

    def use_torch(self) -> None:
        """Leave the kernel aside, to compare the two."""
        self._is_fused = False

    def __call__(self, weights: Tensor, state: Tensor, index: Tensor, gradients: Tensor) -> Tensor:
        """See there; returns which gradients were not finite, bool [n]."""
        if self._is_fused:
            from hetero.kernels.optimizers_triton import update_at

            kind, hyper = KIND[self._spec.kind], hyper_array(self._spec).tolist()
            return update_at(kind, hyper, weights, state, index, gradients)
        return update_at_(self._spec, weights, state, index, gradients)


@cache
def why_not_fused() -> str | None:
    """Why CUDA devices update rows with torch operations; None where Triton is there. Logged the first time."""
    try:
        import triton
    except ImportError as error:
        _LOG.warning(
            "rows on the device are updated by torch operations, slower than the fused kernel, since Triton cannot be "
            "imported (%s); install torch with CUDA, which brings it",
            error,
        )
        return f"Triton cannot be imported ({error})"
    _LOG.debug("rows on the device are updated by a Triton %s kernel", triton.__version__)
    return None


def described(place: TowerDevice) -> str:
    """For people: where a tower computes, and what updates its leased rows there."""
    if not place.holds_rows:
        return place.name
    if place.kind != "cuda":
        return f"{place.name}, rows updated by torch operations"
    reason = why_not_fused()
    if reason is None:
        return f"{place.name}, rows updated by a Triton kernel"
    return f"{place.name}, rows updated by torch operations, slower than the kernel: {reason}"
