"""The device tier on one device, without Ray: rows gathered and updated, copies beside steps, the collectives alone.

    python -m benchmarks.device [--device cuda|cpu] [--quick] [--json] [--save]

Bandwidth is that of copying one large tensor into another, bytes read plus bytes written. A step of rows is the gather
of weights and the update of weights and state, for distinct rows in random slots; its bytes are rows read plus rows
written: weights read and written out by the gather; gradients, weights and state read, weights and state written by the
update. `in the table` leaves out what is not in the table: the gather's output and the gradients. Hidden copies: a run
in windows takes C s, its steps alone A s, its boundaries alone B s; (A + B - C) / B of the boundaries' time was hidden.

The targets are for CUDA devices. On the CPU the same code runs, and its targets are listed as not run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.device_steps import WindowedSteps
from benchmarks.report import Report, add_arguments, finish
from hetero.errors import HeteroError
from hetero.exchange.device_copies import Copies
from hetero.exchange.device_group import DeviceGroup
from hetero.exchange.held_rows import Arrived
from hetero.exchange.leased_group import LeasedGroup
from hetero.exchange.traffic import Traffic
from hetero.hardware.tower_device import TowerDevice, tower_device
from hetero.keys.windows import GroupMoves
from hetero.optim.definition import first_state, state_size
from hetero.optim.device_path import described, why_not_fused
from hetero.parallel.group import CollectiveGroup, free_rendezvous
from hetero.records import F32, I32, GroupSpec, InitSpec, KeySet, RowOptimizer, RowOptimizerSpec, TableSpec

SHARE_CHECK = "gather + update: share of the device's copy bandwidth"
HIDDEN_CHECK = "share of the boundaries' time hidden behind steps"
TARGETS = {SHARE_CHECK: 0.5, HIDDEN_CHECK: 0.8}
_NO_CUDA = "there is no CUDA device here"
_AGREES = 1e-6
_REPEATS = 7


def main() -> int:
    options = _options()
    report = Report("device")
    place = tower_device(options.device, window_bytes=0)
    torch.set_num_threads(1)  # of the CPU's operations: the thread that carries rows has the other core
    print(f"measured on {described(place)}", file=sys.stderr)
    rate = copy_rate(place, report, quick=options.quick)
    measure_rows(place, report, rate=rate, quick=options.quick)
    measure_copies(place, report, quick=options.quick)
    check_results(place, report)
    check_collectives(place, report)
    return finish(report, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument(
        "--device", default=default, help="cuda, cpu or another torch device; default, cuda if there is one"
    )
    return parser.parse_args()


def _check(report: Report, place: TowerDevice, name: str, value: float) -> None:
    """Hold a figure against its target where that is for this device."""
    if place.kind == "cuda":
        report.check(name, value, at_least=TARGETS[name])
    else:
        report.not_run(name, target=f">= {TARGETS[name]:g}", why=f"{_NO_CUDA}; on {place.name} {value:.2f}")


def seconds_of(place: TowerDevice, work: Callable[[], object], *, times: int) -> float:
    """Seconds of one call, the median of a few runs of `times` calls each, after one that counts for nothing."""
    found = []
    for _ in range(1 + _REPEATS):
        _wait(place)
        started = time.perf_counter()
        for _ in range(times):
            work()
        _wait(place)
        found.append((time.perf_counter() - started) / times)
    return statistics.median(found[1:])


def _wait(place: TowerDevice) -> None:
    if place.kind == "cuda":
        torch.cuda.synchronize(place.device)


def copy_rate(place: TowerDevice, report: Report, *, quick: bool) -> float:
    """Bytes/s read plus written of a large copy."""
    floats = (1 << 28 if place.kind == "cuda" else 1 << 24) >> (2 if quick else 0)
    source = torch.ones(floats, device=place.device)
    target = torch.empty_like(source)
    rate = 8 * floats / seconds_of(place, lambda: target.copy_(source), times=4)
    report.add(
        what=f"copy of {4 * floats >> 20} MiB", seconds=8 * floats / rate, gb_s=rate / 1e9, share=1.0, in_table=""
    )
    return rate


def group_of(kind: RowOptimizer, dim: int) -> GroupSpec:
    """One table of rows of that optimizer."""
    table = TableSpec(index=0, name="rows", seed=5)
    return GroupSpec(dim=dim, optimizer=RowOptimizerSpec(kind=kind), init=InitSpec(), tables=(table,))


def entering(rows: int) -> GroupMoves:
    """So many rows into the first slots."""
    none = KeySet(np.empty(0, np.uint16), np.empty(0, np.uint64))
    keys = KeySet(np.zeros(rows, np.uint16), np.arange(rows, dtype=np.uint64))
    return GroupMoves(none, np.empty(0, np.int32), keys, np.arange(rows, dtype=np.int32), rows)


def measure_rows(place: TowerDevice, report: Report, *, rate: float, quick: bool) -> None:
    """Gather and update of rows in random slots, by the kernel and by torch operations."""
    on_cuda = place.kind == "cuda"
    slots = (8_000_000 if on_cuda else 200_000) // (4 if quick else 1)
    rows = slots // 20
    best = 0.0
    for dim, kind in ((64, RowOptimizer.ROWWISE_ADAGRAD), (128, RowOptimizer.ROWWISE_ADAGRAD), (64, RowOptimizer.ADAM)):
        for path in ("kernel", "torch operations") if on_cuda and why_not_fused() is None else ("torch operations",):
            group = DeviceGroup(group_of(kind, dim), copies=Copies(place.device, Traffic()))
            first = np.zeros((slots, dim + state_size(RowOptimizerSpec(kind=kind), dim)), np.float32)
            group.put_in(entering(slots), group.bring(first))
            if path == "torch operations":
                group.update_rows.use_torch()
            chosen: I32 = np.random.default_rng(1).permutation(slots)[:rows].astype(np.int32)
            gradients = torch.full((rows, dim), 0.01, device=place.device)

            def step(group: DeviceGroup = group, chosen: I32 = chosen, gradients: torch.Tensor = gradients) -> None:
                group.weights(chosen)
                group.update(chosen, gradients, step=0)

            seconds = seconds_of(place, step, times=10 if on_cuda else 2)
            width = first.shape[1]
            table_bytes = 4 * rows * (dim + 2 * width)
            row_bytes = table_bytes + 4 * rows * 2 * dim
            share = row_bytes / seconds / rate
            report.add(
                what=f"{rows:,} rows of dim {dim}, {kind.value}, {path}",
                seconds=seconds,
                gb_s=row_bytes / seconds / 1e9,
                share=share,
                in_table=f"{table_bytes / seconds / rate:.2f}",
            )
            if kind is RowOptimizer.ROWWISE_ADAGRAD:
                best = max(best, share)
            del group
    _check(report, place, SHARE_CHECK, best)


def measure_copies(place: TowerDevice, report: Report, *, quick: bool) -> None:
    """Windows whose rows come and go beside the steps."""
    on_cuda = place.kind == "cuda"
    batch, steps = (16384, 128) if on_cuda else (1024, 24)
    work = WindowedSteps(place, batch=batch, steps=steps // (2 if quick else 1), window=8 if on_cuda else 4)
    work.train(moving=True)  # compiles, and lets allocators grow
    times = [(work.train(moving=False), work.move(), work.train(moving=True)) for _ in range(3 if quick else 5)]
    alone, boundaries, together = (statistics.median(part) for part in zip(*times, strict=True))
    hidden = min(1.0, (alone + boundaries - together) / boundaries)
    for what, seconds in (("steps alone", alone), ("boundaries alone", boundaries), ("steps in windows", together)):
        report.add(
            what=f"{what}, DLRM, batch {batch}",
            seconds=seconds,
            gb_s=work.moved_bytes / seconds / 1e9,
            share="",
            in_table="",
        )
    _check(report, place, HIDDEN_CHECK, hidden)


def check_results(place: TowerDevice, report: Report) -> None:
    """Twenty updates on the device and by the CPU's kernels."""
    worst = 0.0
    rows, dim = 5000, 16
    for kind in RowOptimizer:
        spec = group_of(kind, dim)
        random = np.random.default_rng(7)
        weights: F32 = random.normal(size=(rows, dim)).astype(np.float32)
        first = np.concatenate([weights, first_state(spec.optimizer, weights)], axis=1)
        on_device, on_host = DeviceGroup(spec, copies=Copies(place.device, Traffic())), LeasedGroup(spec)
        on_device.put_in(entering(rows), on_device.bring(first))
        on_host.put_in(entering(rows), Arrived(first))
        for _ in range(20):
            chosen = random.permutation(rows)[: rows // 2].astype(np.int32)
            gradients = torch.from_numpy(random.normal(size=(len(chosen), dim)).astype(np.float32))
            on_device.update(chosen, gradients.to(place.device), step=0)
            on_host.update(chosen, gradients, step=0)
        found, wanted = on_device.held()[1], on_host.held()[1]
        worst = max(worst, float(np.max(np.abs(found - wanted) / np.maximum(np.abs(wanted), 1e-3))))
    report.check("rows after 20 updates: largest relative difference to the CPU's kernels", worst, at_most=_AGREES)


def check_collectives(place: TowerDevice, report: Report) -> None:
    """The group's collectives over one rank: NCCL on CUDA, Gloo elsewhere."""
    name = f"collectives over one rank, {'NCCL' if place.kind == 'cuda' else 'Gloo'}: values that differ"
    try:
        group = CollectiveGroup.meet(free_rendezvous("127.0.0.1"), rank=0, size=1, deadline_s=60.0, device=place.device)
    except HeteroError as error:
        report.not_run(name, target="<= 0", why=str(error))
        return
    try:
        rows = torch.arange(12.0, device=place.device).reshape(4, 3)
        summed, exchanged = rows.clone(), group.exchange(rows.clone(), [4], [4])
        group.sum_(summed)
        on_host = torch.ones(3)
        group.sum_(on_host)
        differ = [(summed != rows).sum(), (exchanged != rows).sum(), (on_host != 1).sum()]
        report.check(name, float(sum(int(part) for part in differ)), at_most=0)
    finally:
        group.close()


if __name__ == "__main__":
    sys.exit(main())
