"""What the tiers simulator says of a run, beside what the run does; a part of `benchmarks.tiers`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.report import Report
from hetero.loops.key_trace import windows_of_data
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass
from hetero.planning.tiers import simulate_tiers
from hetero.records import JobSpec
from pipelines.build import Placement, opened_run
from pipelines.run_summary import tiers_record

PREDICTED_SHARE = 0.1


def measure_prediction(report: Report, job: JobSpec, *, memory_bytes: int) -> Iterator[dict[str, object]]:
    """A run from empty tables with another budget of memory, against the simulator's share of the keys: figures of
    both, and the check of their hit rates."""
    assert job.storage is not None
    storage = replace(job.storage, memory_bytes=memory_bytes)
    job = replace(job, storage=storage)
    data = DataPass.open(job.train, phase=Phase.TRAIN, max_steps=job.max_steps)
    with opened_run(job, name="tiers", placement=Placement(in_process=True)) as run:
        samples = run.train(data, watch=lambda _: None).rows
        measured = tiers_record(run.report().tiers, samples=samples)
    yield {
        "what": f"a run from empty tables, budget {memory_bytes / 2**20:.0f} MiB",
        "memory_hits": measured["memory_hit_rate"],
        "ssd_bytes_per_sample": measured["disk_read_bytes_per_sample"] + measured["disk_written_bytes_per_sample"],
        "write_amplification": measured["write_amplification"],
    }
    started = time.perf_counter()
    (told,) = simulate_tiers(job, windows_of_data(job, data), budgets=[storage], sample=PREDICTED_SHARE)
    seconds = time.perf_counter() - started
    yield {
        "what": f"as predicted from {PREDICTED_SHARE:.0%} of the keys, in {seconds:.1f} s",
        "rows_per_s": told.samples / seconds,
        "memory_hits": told.memory_hit_rate,
        "ssd_bytes_per_sample": told.disk_read_bytes_per_sample + told.disk_written_bytes_per_sample,
        "write_amplification": told.write_amplification,
    }
    missed = abs(told.memory_hit_rate - measured["memory_hit_rate"])
    report.check("simulator: hit rate, distance from the measured one", missed, at_most=0.03)
