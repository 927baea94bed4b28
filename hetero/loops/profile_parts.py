"""Tasks that `hetero.loops.profiling` measures by themselves: reading, parsing, windows, and each block of a tower."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hetero.data.filesystem import locate
from hetero.data.parse import parse_split
from hetero.errors import DataError
from hetero.hardware.timing import median_seconds
from hetero.keys.assemble import BatchAssembler
from hetero.keys.routing import Router, initial_owners
from hetero.keys.windows import WindowBuilder
from hetero.loops.run import DataPass
from hetero.planning.task_profile import Point
from hetero.records import Batch, BatchSpec, JobSpec

_SECONDS = 0.5
_LEAST_REPEATS = 5
_MOST_REPEATS = 50
_READ_BYTES = 32 << 20
"""The most of a file that is read to see how fast that is."""
_SPLITS = 3


def input_costs(job: JobSpec, data: DataPass) -> dict[str, Point]:
    """`read` and `parse` of the first splits, as points of all their rows. Raises DataError when they have none.

    read: bytes of the file as they are, which parsing reads too; parse: that and the keys' order, without `read`.
    """
    assembler = BatchAssembler(job)
    warm = parse_split(data.splits[0], spec=data.data, epoch=0)
    assembler.prepare(warm)
    rows, seconds, cpu = 0, 0.0, 0.0
    for split in data.splits[:_SPLITS]:
        began, began_cpu = time.perf_counter(), time.process_time()
        parsed = parse_split(split, spec=data.data, epoch=0)
        assembler.prepare(parsed)
        seconds += time.perf_counter() - began
        cpu += time.process_time() - began_cpu
        rows += parsed.rows
    if not rows:
        raise DataError(f"{data.splits[0].path}: its first {_SPLITS} splits have no good rows to measure with")
    read_s, read_bytes, file_bytes = _read_costs(data.splits[0].path)
    of_first = [split for split in data.splits if split.path == data.splits[0].path]
    own_bytes = file_bytes * min(_SPLITS / len(of_first), 1.0)
    read = read_s * own_bytes / max(read_bytes, 1)
    return {
        "read": Point(rows=rows, seconds=read, cpu_s=min(read, cpu), bytes=own_bytes),
        "parse": Point(rows=rows, seconds=max(seconds - read, 0.0), cpu_s=max(cpu - read, 0.0)),
    }


def _read_costs(path: str) -> tuple[float, int, int]:
    """(seconds, bytes read, bytes of the file) of reading the beginning of a file."""
    where = locate(path)
    with where.filesystem.open_input_file(where.path) as file:
        began = time.perf_counter()
        read = len(file.read(_READ_BYTES))
        return time.perf_counter() - began, read, int(file.size())


def window_point(job: JobSpec, batches: Sequence[tuple[BatchSpec, Batch]]) -> Point:
    """A step's share of building windows of the job's length, or of 1 step, from the keys of batches."""
    steps = min(max(job.window, 1), len(batches))
    specs = [[spec] for spec, _ in batches[:steps]]
    keys = [[[group.unique for group in batch.groups]] for _, batch in batches[:steps]]
    builder = WindowBuilder(job)
    seconds = _median(lambda: builder.build(specs, keys)) / steps
    bytes_ = sum(each.tables.nbytes + each.keys.nbytes for step in keys for each in step[0]) / steps
    return Point(rows=job.batch_size, seconds=seconds, cpu_s=seconds, bytes=bytes_)


def hash_point(job: JobSpec, batches: Sequence[tuple[BatchSpec, Batch]]) -> Point:
    """Hashing a batch's unique keys and dealing them out among two servers."""
    router = Router(job.groups, job.buckets, initial_owners(job.buckets, 2))
    keys = [group.unique for group in batches[-1][1].groups]
    seconds = _median(lambda: [router.route(own) for own in keys])
    bytes_ = sum(own.tables.nbytes + own.keys.nbytes for own in keys)
    return Point(rows=job.batch_size, seconds=seconds, cpu_s=seconds, bytes=bytes_)


def used_bytes(job: JobSpec, batches: Sequence[tuple[BatchSpec, Batch]]) -> float:
    """Of the weights that a step uses, on average; their gradients are as large."""
    all_bytes = sum(
        4 * spec.dim * len(group.unique)
        for _, batch in batches
        for spec, group in zip(job.groups, batch.groups, strict=True)
    )
    return all_bytes / len(batches)


def block_points(module: nn.Module, inputs: tuple[Any, ...], *, rows: int, is_bf16: bool) -> dict[str, Point]:
    """Each block of a tower alone, forward and backward, on the inputs it gets in the tower. Blocks: its submodules.

    bytes: of a block's output. Blocks that do not go from tensors to a tensor are left out.
    """
    points = {}
    for name, block, given in _inputs_of_blocks(module, inputs, is_bf16=is_bf16):
        own = [each.detach().requires_grad_(each.is_floating_point()) for each in given]
        wanted = [each for each in own if each.requires_grad] + [p for p in block.parameters() if p.requires_grad]

        def forward(block: nn.Module = block, own: list[torch.Tensor] = own) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_bf16):
                return block(*own)

        out = forward()
        if not isinstance(out, torch.Tensor) or not wanted or not out.requires_grad:
            continue
        ones = torch.ones_like(out)

        def both(forward: Callable[[], Any] = forward, ones: Any = ones, wanted: Any = wanted) -> None:
            forward().backward(ones)
            for each in wanted:
                each.grad = None

        with FlopCounterMode(display=False) as flops:
            forward()
        with FlopCounterMode(display=False) as all_flops:
            both()
        ahead, whole = _median(forward), _median(both)
        size = out.numel() * out.element_size()
        first, second = flops.get_total_flops(), all_flops.get_total_flops()
        points[f"forward/{name}"] = Point(rows=rows, seconds=ahead, cpu_s=ahead, bytes=size, flops=first)
        points[f"backward/{name}"] = Point(
            rows=rows, seconds=max(whole - ahead, 0.0), cpu_s=max(whole - ahead, 0.0), flops=second - first
        )
    return points


def _inputs_of_blocks(
    module: nn.Module, inputs: tuple[Any, ...], *, is_bf16: bool
) -> list[tuple[str, nn.Module, tuple[torch.Tensor, ...]]]:
    """Blocks in the order in which they run, with what each is given."""
    found: list[tuple[str, nn.Module, tuple[torch.Tensor, ...]]] = []

    def note(name: str) -> Callable[..., None]:
        def hook(block: nn.Module, given: tuple[Any, ...]) -> None:
            if all(isinstance(each, torch.Tensor) for each in given):
                found.append((name, block, given))

        return hook

    handles = [block.register_forward_pre_hook(note(name)) for name, block in _blocks(module)]
    try:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_bf16):
            module(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _blocks(module: nn.Module, before: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Submodules, those of lists each by itself."""
    for name, child in module.named_children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from _blocks(child, f"{before}{name}.")
        else:
            yield f"{before}{name}", child


def _median(work: Callable[[], object]) -> float:
    return median_seconds(work, least=_LEAST_REPEATS, most=_MOST_REPEATS, lasting_s=_SECONDS)
