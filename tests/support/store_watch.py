"""Trains over hundreds of windows on a Ray of its own, and writes out how full the object store was at every look.

Ray keeps objects below 100 KB out of its store; here the limit is 1 KB, so that small batches lie in it too.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import ray

from actors.naming import NAMESPACE
from actors.store import store_used_bytes
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass, RunProgress
from hetero.records import RoleSpec
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.runs import alive

ROWS, BATCH = 4096, 64


def main(folder: Path, steps: int) -> None:
    """Writes {"seen": [[step, bytes], ...], "steps": ..., "spilled_bytes": ...}."""
    ray.init(
        address="local",
        num_cpus=8,
        object_store_memory=100_000_000,
        namespace=NAMESPACE,
        include_dashboard=False,
        log_to_driver=False,
        _system_config={"max_direct_call_object_size": 1000},
    )
    files = [write_data(folder / f"{n}.parquet", rows=ROWS, seed=n) for n in range(2)]
    job = small_job(data_spec(*files), batch_size=BATCH, epochs=1 + steps * BATCH // (2 * ROWS), max_steps=steps)
    job = replace(job, window=1, servers=RoleSpec(count=2), deadline_s=60.0)
    seen: list[tuple[int, int]] = []

    def look(progress: RunProgress) -> None:
        seen.append((progress.step, store_used_bytes()))

    with alive(job, in_process=False) as run:
        data = DataPass.open(job.train, phase=Phase.TRAIN, epochs=job.epochs, max_steps=steps)
        outcome = run.train(data, watch=look)
        store = run.report().store
    assert store is not None
    told = {"seen": seen, "steps": len(outcome.losses), "spilled_bytes": store.spilled_bytes}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
