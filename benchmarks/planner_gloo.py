"""Collective costs against Gloo on this machine: latency and bandwidth fitted on two ranks, all else predicted.

Ranks are processes with one thread each. With more ranks than cores they share the cores, and with them the bandwidth:
copies through the loopback device are the cores' work.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.report import Report
from hetero.hardware.devices import Link
from hetero.hardware.probe import usable_cores
from hetero.planning.collectives import Algorithm, Collective, Place, seconds

SIZES = (1 << 16, 1 << 20, 1 << 23)
RANKS = (2, 4)
_REPEATS = 9
_DEADLINE_S = 120
Times = Mapping[tuple[Collective, int], float]


def gloo(report: Report, row: Callable[..., None]) -> None:
    """Two numbers from all-reduce of two ranks at the smallest and largest size; the rest is held against them."""
    measured = {ranks: measure(ranks) for ranks in RANKS}
    link = fitted_link(measured[2])
    row(report, "Gloo", "fitted on all-reduce of 2 ranks", "latency, microseconds", 1e6 * link.latency_s)
    row(report, "Gloo", "fitted on all-reduce of 2 ranks", "GB/s", link.bytes_per_s / 1e9)
    errors = []
    for ranks, times in measured.items():
        sharing = max(1, round(ranks / usable_cores()))
        place = Place(inside=1, machines=ranks, inside_link=link, across_link=link, sharing=sharing)
        for (collective, size), measured_s in times.items():
            predicted = seconds(collective, size_bytes=size, place=place, algorithm=Algorithm.RING)
            if size > SIZES[0]:
                errors.append(abs(predicted / measured_s - 1))
            case = f"{collective.value} of {size / (1 << 20):g} MiB, {ranks} ranks"
            row(report, "Gloo", case, "predicted ms; measured as published", 1e3 * predicted, 1e3 * measured_s)
    report.check(
        "Gloo: median error of predicted collectives of 1 MiB and more", statistics.median(errors), at_most=0.5
    )


def fitted_link(times: Times) -> Link:
    """From t = 2 (latency + size / 2 / rate), at two sizes."""
    small, large = SIZES[0], SIZES[-1]
    low, high = times[Collective.ALL_REDUCE, small], times[Collective.ALL_REDUCE, large]
    rate = (large - small) / (high - low)
    return Link(name="gloo", latency_s=max(low / 2 - small / 2 / rate, 1e-7), bytes_per_s=rate)


def measure(ranks: int) -> Times:
    """Median seconds of each collective and size. Raises TimeoutError when the ranks do not answer."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        queue: SimpleQueue[dict[tuple[Collective, int], float]] = context.SimpleQueue()
        store = str(Path(folder) / "store")
        workers = [context.Process(target=_rank, args=(rank, ranks, store, queue)) for rank in range(ranks)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(_DEADLINE_S)
        late = [worker for worker in workers if worker.is_alive()]
        for worker in late:
            worker.kill()
        if late:
            raise TimeoutError(f"{len(late)} of {ranks} Gloo ranks did not end within {_DEADLINE_S} s")
        return queue.get()


def _rank(rank: int, ranks: int, store: str, queue: SimpleQueue[dict[tuple[Collective, int], float]]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    times: dict[tuple[Collective, int], float] = {}
    for collective in Collective:
        for size in SIZES:
            whole, part = torch.ones(size // 4), torch.ones(size // 4 // ranks)
            call = _call(collective, whole, part)
            took = []
            for _ in range(_REPEATS):
                dist.barrier()
                started = time.perf_counter()
                call()
                took.append(time.perf_counter() - started)
            times[collective, size] = statistics.median(took[1:])
    if rank == 0:
        queue.put(times)
    dist.destroy_process_group()


def _call(collective: Collective, whole: torch.Tensor, part: torch.Tensor) -> Callable[[], object]:
    received = torch.empty_like(whole)
    # The first name is that of torch 2.13, which warns at the second; older ones have the second only.
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return {
        Collective.ALL_REDUCE: lambda: dist.all_reduce(whole.clone()),
        Collective.ALL_GATHER: lambda: dist.all_gather_into_tensor(received, part),
        Collective.REDUCE_SCATTER: lambda: scatter(part, whole),
        Collective.ALL_TO_ALL: lambda: dist.all_to_all_single(received, whole),
    }[collective]
