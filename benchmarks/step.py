"""Where a tower's step goes: each piece beside plain torch and its floor, one thread, the peers' DLRM at batch 4096.

    python -m benchmarks.step [--quick] [--json] [--save]

Forward and backward of each piece on its own; CPU time of one thread. A round takes every piece both ways, then a whole
step; medians over rounds, with the 10% and 90% of the ratio. The floor of an MLP is its matrix products at the rate of
a 1024 x 1024 x 1024 product here; that of all else is its bytes, each touched once, at the rate of a large copy here.
The step is the tower's own, gather and update of leased rows included; plain torch's is the sum of its pieces. Dedup is
a reader's work and no part of the step. In full: 30 rounds; --quick: 8.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.report import Report, arguments, cpu_seconds, finish
from benchmarks.step_workload import BATCH, BATCHES, DENSE, DIM, FIELDS, LARGE_BATCH, Workload
from hetero.hardware.heap import keep_freed_memory
from hetero.observe.spans import SpanClock
from hetero.optim.torch_path import update_rows_
from hetero.parallel.dense import DenseUpdater
from hetero.parallel.group import SoleTower
from hetero.towers.dlrm import DLRM
from hetero.towers.embeddings import EmbeddingLayout, embed
from hetero.towers.layers import MLP
from hetero.towers.relu_layers import aligned_rows

PAIRS = (FIELDS + 1) * FIELDS // 2
MATRIX = 1024
COPIED_FLOATS = 16 << 20
MOST_FAULTS = 4096
INTERACTION = "interaction"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One part of the step. plain, ours: called with the number of a batch. floor_s: seconds; of: what bounds it."""

    name: str
    plain: Callable[[int], object]
    ours: Callable[[int], object]
    floor_s: float
    of: str
    in_step: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Of this machine, one thread: matrix products in FLOP/s, a large copy in bytes/s, both ways counted."""

    flops: float
    bytes: float


def main() -> int:
    options = arguments(__doc__ or "")
    keep_freed_memory()
    torch.set_num_threads(1)
    report = Report("step")
    rates = measure_rates()
    workload = Workload()
    parts = pieces(workload, rates)
    rounds = [measure_round(workload, parts, number) for number in range(9 if options.quick else 31)]
    fill(report, parts, rounds, rates)
    by_default = page_faults(keep=False)
    name = f"page faults a step of {LARGE_BATCH}, freed memory kept ({by_default:,.0f} by the C library's defaults)"
    report.check(name, page_faults(keep=True), at_most=MOST_FAULTS)
    return finish(report, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """CPU seconds of every piece, both ways, and of one whole step, taken one after the other."""

    plain_s: tuple[float, ...]
    ours_s: tuple[float, ...]
    step_s: float


def measure_round(workload: Workload, parts: Sequence[Piece], number: int) -> Round:
    plain_s: list[float] = []
    ours_s: list[float] = []
    for piece in parts:
        sides = [(piece.plain, plain_s), (piece.ours, ours_s)]
        for side, times in sides if number % 2 else reversed(sides):
            times.append(cpu_seconds(partial(side, number % BATCHES)))
    return Round(plain_s=tuple(plain_s), ours_s=tuple(ours_s), step_s=cpu_seconds(workload.step))


def fill(report: Report, parts: Sequence[Piece], rounds: Sequence[Round], rates: Rates) -> None:
    """The table and the checks on it. The first round warms up and does not count."""
    counted = rounds[1:]
    step = [each.step_s for each in counted]
    inside = [index for index, piece in enumerate(parts) if piece.in_step]
    for index, piece in enumerate(parts):
        plain, ours = [each.plain_s[index] for each in counted], [each.ours_s[index] for each in counted]
        add_row(report, piece.name, ours, plain, step if piece.in_step else None, piece.floor_s, piece.of)
        if piece.name == INTERACTION:
            report.check("interaction: times torch's bmm path", median_ratio(plain, ours), at_least=1.0)
    rest = [each.step_s - sum(each.ours_s[index] for index in inside) for each in counted]
    add_row(report, "rest: loss, autograd, Python", rest, None, step, 0.0, "")
    whole = [sum(each.plain_s[index] for index in inside) for each in counted]
    floor_s = sum(parts[index].floor_s for index in inside)
    of = f"{rates.flops / 1e9:.0f} GFLOP/s, {rates.bytes / 1e9:.0f} GB/s"
    add_row(report, "the tower's step", step, whole, step, floor_s, of)
    report.check("the step: times the sum of plain torch's pieces", median_ratio(whole, step), at_least=1.0)


def add_row(
    report: Report,
    what: str,
    ours: Sequence[float],
    plain: Sequence[float] | None,
    step: Sequence[float] | None,
    floor_s: float,
    of: str,
) -> None:
    """A line of the table, in ms. step: what `ours` is a share of."""
    ours_s = statistics.median(ours)
    ratios = sorted(base / own for base, own in zip(plain, ours, strict=True)) if plain else []
    edge = len(ratios) // 10
    report.add(
        piece=what,
        ours_ms=1e3 * ours_s,
        torch_ms=1e3 * statistics.median(plain) if plain else "",
        torch_over_ours=statistics.median(ratios) if ratios else "",
        spread=f"{ratios[edge]:.2f} to {ratios[-1 - edge]:.2f}" if ratios else "",
        floor_ms=1e3 * floor_s if floor_s else "",
        ours_over_floor=ours_s / floor_s if floor_s else "",
        floor_is=of,
        share=f"{ours_s / statistics.median(step):.1%}" if step else "",
    )


def median_ratio(base: Sequence[float], ours: Sequence[float]) -> float:
    return statistics.median(first / second for first, second in zip(base, ours, strict=True))


def measure_rates() -> Rates:
    """The best of several, so that a neighbour does not lower the floor."""
    left, right, product = (torch.ones(MATRIX, MATRIX) for _ in range(3))
    source, target = np.ones(COPIED_FLOATS, np.float32), np.ones(COPIED_FLOATS, np.float32)
    product_s = min(cpu_seconds(lambda: torch.mm(left, right, out=product)) for _ in range(15))
    copy_s = min(cpu_seconds(lambda: np.copyto(target, source)) for _ in range(15))
    return Rates(flops=2 * MATRIX**3 / product_s, bytes=2 * source.nbytes / copy_s)


def page_faults(*, keep: bool) -> float:
    """Page faults of a step, in a process of its own."""
    script = (
        "import torch; torch.set_num_threads(1); from benchmarks.step_workload import page_faults_a_step as faults;"
        f"print(faults(keep={keep}))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    return float(ended.stdout)


def pieces(workload: Workload, rates: Rates) -> list[Piece]:
    """The parts of the step, in its order."""
    tower = workload.tower.module
    assert isinstance(tower, DLRM)
    assert tower.bottom is not None
    return [
        pooling(workload, rates),
        mlp("bottom MLP 13-512-256-16", tower.bottom, Leaf(BATCH, DENSE, gradient=False), rates),
        interaction(tower, rates),
        mlp(f"top MLP {DIM + PAIRS}-512-256-1", tower.top, Leaf(BATCH, DIM + PAIRS, gradient=True), rates),
        row_optimizer(workload, rates),
        dense_optimizer(tower, workload, rates),
        dedup(workload, rates),
    ]


class Leaf:
    """A random input [rows, columns] of a piece, laid out as the piece before it leaves it."""

    def __init__(self, *shape: int, gradient: bool) -> None:
        self.values = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
        self.gradient = gradient

    def fresh(self) -> Tensor:
        return self.values.detach().requires_grad_(self.gradient)


def mlp(name: str, module: MLP, inputs: Leaf, rates: Rates) -> Piece:
    """Forward and backward; plain torch runs the same layers one by one."""
    linears = [layer for layer in module.layers if isinstance(layer, nn.Linear)]
    grad = torch.randn(BATCH, linears[-1].out_features)
    aligned = Leaf(BATCH, linears[0].in_features, gradient=inputs.gradient)
    if inputs.gradient:
        aligned.values = aligned_rows(*inputs.values.shape).copy_(inputs.values)

    def run(layers: nn.Module, x: Tensor) -> None:
        module.zero_grad()
        layers(x).backward(grad)

    products = [2 * BATCH * layer.weight.numel() for layer in linears]
    flops = 3 * sum(products) - (0 if inputs.gradient else products[0])
    return Piece(
        name=name,
        plain=lambda _: run(module.layers, inputs.fresh()),
        ours=lambda _: run(module, aligned.fresh()),
        floor_s=flops / rates.flops,
        of=f"{flops / 1e9:.2f} GFLOP",
    )


def interaction(tower: DLRM, rates: Rates) -> Piece:
    """Dot products of 27 vectors, behind the copy of the first; plain torch: cat, bmm, index_select, cat."""
    first, block = Leaf(BATCH, DIM, gradient=True), Leaf(BATCH, FIELDS, DIM, gradient=True)
    grad = torch.randn(BATCH, DIM + PAIRS)
    rows, columns = torch.tril_indices(FIELDS + 1, FIELDS + 1, offset=-1)
    lower = rows * (FIELDS + 1) + columns

    def plain(_: int) -> None:
        vector, others = first.fresh(), block.fresh()
        fields = torch.cat([vector.unsqueeze(1), others], 1)
        products = torch.bmm(fields, fields.transpose(1, 2)).flatten(1).index_select(1, lower)
        torch.autograd.backward(torch.cat([vector, products], 1), grad)

    def ours(_: int) -> None:
        torch.autograd.backward(tower.interaction(block.fresh(), first.fresh()), grad)

    moved = 4 * BATCH * (3 * (FIELDS + 1) * DIM + 2 * (DIM + PAIRS))
    return Piece(name=INTERACTION, plain=plain, ours=ours, floor_s=moved / rates.bytes, of=megabytes(moved))


def pooling(workload: Workload, rates: Rates) -> Piece:
    """Unique rows to one row a cell, and gradients back, duplicates merged; plain torch: embedding."""
    layout = EmbeddingLayout.from_job(workload.job)
    rows = [workload.leased.weights(slots) for slots in workload.slots]
    local = [torch.from_numpy(batch.groups[0].pooled.local.astype(np.int64)) for batch in workload.batches]
    grad = torch.randn(BATCH, FIELDS, DIM)

    def plain(number: int) -> None:
        found = nn.functional.embedding(local[number], rows[number].detach().requires_grad_())
        torch.autograd.backward(found.view(BATCH, FIELDS, DIM), grad)

    def ours(number: int) -> None:
        leaf = rows[number].detach().requires_grad_()
        torch.autograd.backward(embed(workload.batches[number], [leaf], layout).blocks[0], grad)

    unique, cells = len(rows[0]), BATCH * FIELDS
    moved = 2 * (4 * cells + 4 * DIM * cells + 4 * DIM * unique)
    return Piece(
        name="pooling of unique rows", plain=plain, ours=ours, floor_s=moved / rates.bytes, of=megabytes(moved)
    )


def row_optimizer(workload: Workload, rates: Rates) -> Piece:
    """Gather of weights and row-wise Adagrad on leased rows; plain torch: index_select, arithmetic, index_copy_."""
    spec = workload.job.groups[0].optimizer
    slots = [torch.from_numpy(slots.astype(np.int64)) for slots in workload.slots]
    buffer = torch.zeros(1 + int(max(int(part.max()) for part in slots)), DIM + 1)
    gradients = [torch.randn(len(part), DIM) * 1e-3 for part in slots]

    def plain(number: int) -> None:
        buffer[:, :DIM].index_select(0, slots[number])
        rows = buffer.index_select(0, slots[number])
        update_rows_(spec, rows, gradients[number])
        buffer.index_copy_(0, slots[number], rows)

    def ours(number: int) -> None:
        workload.leased.weights(workload.slots[number])
        workload.leased.update(workload.slots[number], gradients[number], step=0)

    unique = len(slots[0])
    moved = 4 * unique * (2 * DIM + 2 * (DIM + 1) + DIM)
    return Piece(
        name="leased rows: gather, optimizer",
        plain=plain,
        ours=ours,
        floor_s=moved / rates.bytes,
        of=megabytes(moved),
    )


def dense_optimizer(tower: nn.Module, workload: Workload, rates: Rates) -> Piece:
    """Adagrad on all dense parameters and the look for gradients that are no numbers; plain torch: the first alone."""
    twin = nn.ParameterList([nn.Parameter(parameter.detach().clone()) for parameter in tower.parameters()])
    optimizer = torch.optim.Adagrad(twin.parameters(), lr=0.01, eps=1e-8)
    own = nn.ParameterList([nn.Parameter(parameter.detach().clone()) for parameter in tower.parameters()])
    updater = DenseUpdater(own, workload.job.tower, group=SoleTower(), clock=SpanClock())
    gradients = [1e-3 * torch.randn(parameter.shape) for parameter in tower.parameters()]
    loss = torch.zeros(())

    def given(parameters: nn.ParameterList) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient

    def plain(_: int) -> None:
        given(twin)
        optimizer.step()
        optimizer.zero_grad()

    def ours(_: int) -> None:
        given(own)
        updater.step(loss)

    moved = 5 * 4 * sum(parameter.numel() for parameter in tower.parameters())
    return Piece(name="dense optimizer", plain=plain, ours=ours, floor_s=moved / rates.bytes, of=megabytes(moved))


def dedup(workload: Workload, rates: Rates) -> Piece:
    """Unique keys with the inverse; plain torch: unique of one 64-bit number a cell."""
    keys = [torch.from_numpy(keys.view(np.int64)) for keys in workload.keys]
    unique, cells = len(workload.slots[0]), BATCH * FIELDS
    moved = cells * (8 + 2 + 4) + unique * (8 + 2)
    return Piece(
        name="dedup (a reader's)",
        plain=lambda number: torch.unique(keys[number], return_inverse=True),
        ours=workload.dedup,
        floor_s=moved / rates.bytes,
        of=megabytes(moved),
        in_step=False,
    )


def megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


if __name__ == "__main__":
    sys.exit(main())
