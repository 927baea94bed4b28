"""What a rank measures before its first step, all ranks at once: its device, a block of its model, a sum over all."""

from __future__ import annotations

import psutil
import torch
import torch.distributed as dist

from hetero.hardware.matrix_rate import matrix_rate
from hetero.hardware.rates import copy_rate
from hetero.hardware.timing import median_seconds
from hetero.parallel.mesh import Mesh
from hetero.parallel.sharding import activation_dtype
from hetero.planning.deep_run import RankRates
from hetero.planning.shape import Recompute, TransformerShape
from hetero.records.deep_job import DeepJobSpec
from hetero.towers.attention import rotary_of
from hetero.towers.transformer import Block

_BLOCK_S = 0.15
"""About what the measurement of a block takes, where one call is short."""
_COPY_BYTES = 16 << 20
"""Little, as it counts in the peak of a rank's memory."""
_MOST_OF_MEMORY = 0.125
"""A block's weights, gradients and activations together may take this much of what is free, or it is not measured."""


def rank_rates(job: DeepJobSpec, mesh: Mesh, *, base_bytes: int) -> RankRates:
    """Measure; a collective call. base_bytes: of the process before its model."""
    plain = RankRates()
    dtype = activation_dtype(job.mesh.precision)
    dist.barrier()
    matrix_flops = matrix_rate(mesh.device, dtype)
    dist.barrier()
    block_flops = _block_flops(job, mesh.device, dtype)
    dist.barrier()
    memory = copy_rate(mesh.device, size=_COPY_BYTES)
    small_s, large_s = (_sum_s(mesh, size) for size in (plain.small_bytes, plain.large_bytes))
    return RankRates(
        matrix_flops=matrix_flops,
        block_flops=block_flops,
        memory_bytes_per_s=memory,
        small_s=small_s,
        large_s=large_s,
        base_bytes=base_bytes,
        device=torch.cuda.get_device_name(mesh.device) if mesh.device.type == "cuda" else "",
    )


def _block_flops(job: DeepJobSpec, device: torch.device, dtype: torch.dtype) -> float | None:
    """FLOP/s of a whole block's forward and backward on a micro-batch of its own, one at a time and weights unsplit."""
    spec, mesh = job.model, job.mesh
    sequences = max(1, job.batch_size // mesh.data_ways // mesh.micro_batches)
    shape = TransformerShape.of(spec)
    size = 2 * 4 * spec.block_parameters + 2 * shape.activation_bytes(sequences, recompute=Recompute.NONE)
    if size > _MOST_OF_MEMORY * _free_bytes(device):
        return None
    state = torch.random.get_rng_state()
    try:
        block = Block(spec, rotary=rotary_of(spec)).to(device=device, dtype=dtype)
        x = torch.zeros((sequences, spec.context, spec.width), device=device, dtype=dtype, requires_grad=True)
    finally:
        torch.random.set_rng_state(state)
    ones = torch.ones_like(x)
    wanted = [x, *block.parameters()]

    def both() -> None:
        torch.autograd.grad(block(x), wanted, ones)

    seconds = median_seconds(both, device=device, least=3, most=50, lasting_s=_BLOCK_S)
    return 3 * shape.layer_flops(sequences) / seconds


def _sum_s(mesh: Mesh, size_bytes: int) -> float:
    if mesh.size == 1:
        return 0.0
    values = torch.zeros(size_bytes // 4, device=mesh.device)
    return median_seconds(lambda: dist.all_reduce(values), device=mesh.device)  # as often on every rank


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)
