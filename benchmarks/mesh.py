"""Deep models: one process against a plain PyTorch loop of the same model, and actors against torchrun.

The loop: the same modules, torch's AdamW (fused) and its clipping, nothing of ours between. Steps of both in turn, each
first in every other pair. Actors and torchrun: the same two ranks, data parallel, one thread each, in alternation;
compared is the median time between two steps. On a GPU also tokens/s and the share of the measured bf16 matrix rate.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from actors.context import THREADS_WAIT, connected_with
from actors.rank import DeepContext
from actors.ranks import RankGroup
from benchmarks.mesh_learning import check_learning
from benchmarks.report import Report, add_arguments, finish, measure_pairs
from hetero.data.token_store import write_tokens
from hetero.hardware.matrix_rate import matrix_rate
from hetero.parallel.deep_tower import DeepTower
from hetero.parallel.mesh import Mesh
from hetero.records.deep_job import DeepJobSpec, TextSpec
from hetero.records.mesh import DeepOptimizerSpec, DeepPrecision, MeshSpec
from hetero.records.transformer import TransformerSpec
from hetero.towers.transformer import Transformer, token_loss
from hetero.towers.transformer_initial import set_initial

CPU_MODEL = TransformerSpec(layers=4, width=256, heads=4, kv_heads=4, hidden=704, vocabulary=256, context=128)
GPU_MODEL = TransformerSpec(
    layers=12, width=4096, heads=32, kv_heads=32, hidden=10_944, vocabulary=50_304, context=2048
)
OPTIMIZER = DeepOptimizerSpec(lr=1e-3, steps=1000)
SEED = 1
_ALTERNATIONS = 5
_WARM = 3
_LEAST_STEP_S = 0.2


def plain_loop(model: TransformerSpec, batch: int) -> Callable[[int], float]:
    """Seconds of one step by PyTorch alone."""
    module = Transformer(model)
    set_initial(module, model, seed=SEED)
    matrices = [p for p in module.parameters() if p.ndim >= 2]
    others = [p for p in module.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": OPTIMIZER.weight_decay}, {"params": others, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=OPTIMIZER.lr, betas=(OPTIMIZER.beta1, OPTIMIZER.beta2), fused=True)
    assert OPTIMIZER.clip is not None
    clip = OPTIMIZER.clip

    def step(number: int) -> float:
        tokens, targets = batch_of(model, batch, number)
        started = time.perf_counter()
        loss = token_loss(module(tokens), targets) / targets.numel()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        adamw.step()
        adamw.zero_grad()
        loss.item()
        return time.perf_counter() - started

    return step


def batch_of(model: TransformerSpec, batch: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tokens and targets int64 [batch, context]."""
    generator = torch.Generator().manual_seed(number)
    blocks = torch.randint(0, model.vocabulary, (batch, model.context + 1), generator=generator)
    return blocks[:, :-1], blocks[:, 1:]


def check_single_process(report: Report, *, quick: bool) -> None:
    """Ours within 5% of the plain loop."""
    torch.set_num_threads(2)
    batch = 8
    mesh = Mesh(MeshSpec(), rank=0, size=1, device=torch.device("cpu"), deadline_s=30.0)
    tower = DeepTower(CPU_MODEL, mesh=mesh, optimizer=OPTIMIZER, batch_size=batch, seed=SEED)

    def ours(number: int) -> float:
        tokens, targets = batch_of(CPU_MODEL, batch, number)
        started = time.perf_counter()
        tower.step(tokens, targets)
        return time.perf_counter() - started

    pairs = measure_pairs(plain_loop(CPU_MODEL, batch), ours, count=20 if quick else 60)
    mesh.close()
    tokens = batch * CPU_MODEL.context
    rate = matrix_rate(torch.device("cpu"), torch.float32)
    report.add(
        what="one process, CPU fp32",
        base_s=pairs.base_s,
        ours_s=pairs.ours_s,
        ratio=pairs.ratio,
        spread=pairs.spread,
        tokens_per_s=tokens / pairs.ours_s,
        mfu=tokens / pairs.ours_s * CPU_MODEL.flops_per_token / rate,
    )
    report.check("one process: plain loop's time / ours", pairs.ratio, at_least=0.95)


def check_actors(report: Report, *, quick: bool) -> None:
    """A step over actors against the same under torchrun."""
    steps = 12 if quick else 25
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = np.random.default_rng(SEED).integers(0, CPU_MODEL.vocabulary, 400_000)
        write_tokens(folder / "text", [tokens], tokenizer="byte", vocabulary=CPU_MODEL.vocabulary)
        job = DeepJobSpec(
            name="mesh",
            seed=SEED,
            text=TextSpec(train=str(folder / "text"), validation=None, vocabulary=CPU_MODEL.vocabulary),
            model=CPU_MODEL,
            mesh=MeshSpec(dp=2),
            optimizer=replace(OPTIMIZER, steps=steps),
            batch_size=24,
            steps=steps,
        )
        torchrun, actors = [], []
        for number in range(_ALTERNATIONS):
            torchrun.append(_median_step(_under_torchrun(job, folder / f"torchrun{number}")))
            actors.append(_median_step(_over_actors(job, folder / f"actors{number}")))
    ratios = sorted(theirs / ours for theirs, ours in zip(torchrun, actors, strict=True))
    report.add(
        what="2 ranks: torchrun against actors",
        base_s=statistics.median(torchrun),
        ours_s=statistics.median(actors),
        ratio=statistics.median(ratios),
        spread=f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
        tokens_per_s=job.tokens_per_step / statistics.median(actors),
        mfu=0.0,
    )
    report.check("2 ranks: seconds of a step, at least 0.2", statistics.median(torchrun), at_least=_LEAST_STEP_S)
    report.check("2 ranks: actors' step / torchrun's", 1 / statistics.median(ratios), at_most=1.03)


def _under_torchrun(job: DeepJobSpec, folder: Path) -> list[float]:
    folder.mkdir()
    (folder / "job.pickle").write_bytes(pickle.dumps(job))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={job.mesh.ranks}"]
    command += ["-m", "benchmarks.mesh_rank", str(folder / "job.pickle"), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", THREADS_WAIT: "PASSIVE"}
    subprocess.run(command, check=True, timeout=300, env=environment, capture_output=True)
    ends: list[float] = json.loads((folder / "ends.json").read_text(encoding="utf-8"))
    return ends


def _over_actors(job: DeepJobSpec, folder: Path) -> list[float]:
    folder.mkdir()
    context = DeepContext(run=folder.name, job=job, folder=folder, import_paths=(str(Path.cwd()),))
    with connected_with(job.mesh.ranks, address=None):
        group = RankGroup(context)
        try:
            group.join(None)
            return group.train(watch=lambda _: None)[0].step_ends_t
        finally:
            group.close()
            shutil.rmtree(folder, ignore_errors=True)


def _median_step(ends: list[float]) -> float:
    return statistics.median(after - before for before, after in list(pairwise(ends))[_WARM:])


def check_gpu(report: Report, *, quick: bool) -> None:
    """Tokens/s and share of the measured bf16 matrix rate, at a size that fills the device."""
    target = "share of the measured bf16 matrix rate on one GPU"
    if not torch.cuda.is_available():
        report.not_run(target, target=">= 0.45", why="no GPU here")
        return
    device, batch = torch.device("cuda", 0), 8
    rate = matrix_rate(device, torch.bfloat16)
    mesh = Mesh(MeshSpec(precision=DeepPrecision.BF16), rank=0, size=1, device=device, deadline_s=300.0)
    tower = DeepTower(GPU_MODEL, mesh=mesh, optimizer=OPTIMIZER, batch_size=batch, seed=SEED)
    times = []
    for number in range(8 if quick else 20):
        tokens, targets = (part.to(device) for part in batch_of(GPU_MODEL, batch, number))
        torch.cuda.synchronize()
        started = time.perf_counter()
        tower.step(tokens, targets)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    mesh.close()
    step_s = statistics.median(times[_WARM:])
    tokens_per_s = batch * GPU_MODEL.context / step_s
    share = tokens_per_s * GPU_MODEL.flops_per_token / rate
    report.add(
        what=f"one {torch.cuda.get_device_name()}, bf16, {GPU_MODEL.parameters / 1e9:.1f}B parameters, "
        f"{torch.cuda.max_memory_allocated() / 2**30:.0f} GiB, {rate / 1e12:.0f} TFLOP/s in matrix products",
        base_s=0.0,
        ours_s=step_s,
        ratio=0.0,
        spread="",
        tokens_per_s=tokens_per_s,
        mfu=share,
    )
    report.check(target, share, at_least=0.45)


PARTS: Mapping[str, Callable[..., None]] = {
    "single": check_single_process,
    "actors": check_actors,
    "gpu": check_gpu,
    "learning": check_learning,
}


def main() -> int:
    """Run the checks; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--part", choices=tuple(PARTS), help="one part alone")
    options = parser.parse_args()
    report = Report("mesh")
    for name, check in PARTS.items():
        if options.part in (None, name):
            check(report, quick=options.quick)
    return finish(report, options)


if __name__ == "__main__":
    sys.exit(main())
