"""One rank of `benchmarks.mesh` under torchrun: the loop that the actors run. Arguments: a pickled job, a folder."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path

import torch

from hetero.loops.deep import DeepRank
from hetero.parallel.group import Rendezvous
from hetero.parallel.mesh import Mesh, device_named, join_store
from hetero.records.deep_job import DeepJobSpec

_JOIN_S = 60.0


def main() -> None:
    """Train, and from rank 0 leave when every step ended in `ends.json`."""
    job: DeepJobSpec = pickle.loads(Path(sys.argv[1]).read_bytes())
    folder = Path(sys.argv[2])
    rank = int(os.environ["RANK"])
    torch.set_num_threads(job.threads)
    meet = Rendezvous(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    mesh = Mesh(
        job.mesh,
        rank=rank,
        size=job.mesh.ranks,
        device=device_named(job.device),
        deadline_s=job.deadline_s,
        store=join_store(meet, deadline_s=_JOIN_S),
    )
    log = DeepRank(job, mesh=mesh).train(folder, after_step=lambda _: None)
    if rank == 0:
        (folder / "ends.json").write_text(json.dumps(log.step_ends_t), encoding="utf-8")
    mesh.close()


if __name__ == "__main__":
    main()
