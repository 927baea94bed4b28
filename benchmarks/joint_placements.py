"""One job of text and clicks under each placement: what `hetero plan` says of it beside what it reaches.

    python -m benchmarks.joint_placements [--quick] [--json] [--save]

Nodes of this machine by labels: two of CPUs, and one that stands for a V100. The text half waits as long as its node's
device would take, and its core is free meanwhile. Every task is profiled by itself, a kind of node each; then the job
runs with all on one node, on two CPU nodes, with its tower on the accelerator's node, and as the planner would have it.
Nothing is fitted to the runs. Those of one tower must give the same losses, bit for bit, and those of several losses
within 1e-5 of them. --quick: one run of each.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from actors.unlike_nodes import EmulatedNode, unlike_nodes
from benchmarks.emulated import device_here
from benchmarks.joint import WINDOW, Size, job_of, made_data, tell
from benchmarks.node_links import Links, measured_links
from benchmarks.report import Report, arguments, finish
from hetero.hardware.probe import usable_cores
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass
from hetero.planning.predict import Configuration, Prediction, predict
from hetero.planning.task_profile import JobProfile
from hetero.records import F64
from hetero.towers.build import make_tower
from hetero.towers.embeddings import TowerInputs
from hetero.towers.joint import Joint
from pipelines.build import Placement, opened_run
from pipelines.cluster_file import load_cluster
from pipelines.job import Job, load_job
from pipelines.plan import Measured, make_plan
from pipelines.plan_file import PlanFile, planned_job, save_plan
from pipelines.profile import profile_job
from pipelines.resolve import complete, resolve

SIZE = Size(tokens=8, layers=1, width=32, lists=4, length=50, steps=48)
ROW_US = {"cpu": 900.0, "v100-16gb": 300.0}
"""Microseconds a text, forward and backward: long beside what a row takes of the cores, about 200 over all roles, which
all nodes share."""
KINDS: Mapping[str, EmulatedNode] = {
    "cpu": EmulatedNode(cpus=2, labels={"role": "cpu"}),
    "gpu": EmulatedNode(cpus=1, gpus=1, labels={"role": "gpu", "hetero/accelerator": "v100-16gb"}),
}
COUNTS = {"cpu": 2, "gpu": 1}
PRICES = {"cpu": "0.8", "gpu": "3.0"}
SKIPPED = 0.35
"""Of a run's steps, at its start: windows fill and buffers grow."""
FRONT = {"readers": 1, "servers": 1}
PLACEMENTS: Mapping[str, tuple[tuple[str, Mapping[str, int]], ...]] = {
    "all on one node": (("cpu", {**FRONT, "towers": 1}),),
    "all on CPU nodes": (("cpu", FRONT), ("cpu", {"towers": 1})),
    "text on an accelerator's node": (("cpu", FRONT), ("gpu", {"towers": 1})),
}


class _Waits(torch.autograd.Function):
    """Passes values on, and waits a third of `seconds` forward and two thirds backward."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds / 3)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds * 2 / 3)
        return gradients[0], None


class EmulatedJoint(Joint):
    """A joint tower that waits besides as long as its node's device would take to read texts."""

    def __init__(self, inputs: TowerInputs, **arguments: Any) -> None:
        super().__init__(inputs, **arguments)
        self._row_s = 1e-6 * ROW_US.get(device_here(), 0.0)

    def read(self, tokens: Sequence[Tensor]) -> tuple[Tensor, ...]:
        texts = super().read(tokens)
        if not (self.training and self._row_s):
            return texts
        wait: Callable[[Tensor, float], Tensor] = _Waits.apply
        return tuple(wait(text, self._row_s * len(text)) for text in texts)


def main() -> int:
    options = arguments(__doc__ or "")
    report = Report("joint_placements")
    nodes = [node for kind, node in KINDS.items() for _ in range(COUNTS[kind])]
    with tempfile.TemporaryDirectory() as name, unlike_nodes(nodes) as address:
        folder = Path(name)
        job, cluster = made_job(folder), write_cluster(folder)
        profile = profile_job(job, job_path=folder / "job.yaml", cluster_path=cluster, address=address)
        links = measured_links()
        losses, errors = [], []
        for what, placed in placements(job, folder, profile, cluster):
            said = predict(profile, configuration(placed, links))
            rates = []
            for _ in range(1 if options.quick else 3):
                rate, found = run(placed)
                rates.append(rate)
                losses.append((placed.roles.towers.count, found))
            errors.append(add_row(report, what, said, rates))
    report.check("largest error of the predicted samples/s", max(errors), at_most=0.15)
    alone = [found for towers, found in losses if towers == 1]
    same = sum(bool(np.array_equal(alone[0], other)) for other in alone)
    report.check("runs of one tower whose losses are those of the first, bit for bit", same, at_least=len(alone))
    apart = max((float(np.abs(found - alone[0]).max()) for towers, found in losses if towers > 1), default=0.0)
    report.check("the most that losses of several towers differ from them", apart, at_most=1e-5)
    return finish(report, options)


def made_job(folder: Path) -> Job:
    made = job_of("joint", made_data(folder, SIZE), SIZE).model_dump(mode="json", by_alias=True, exclude_unset=True)
    made["tower"] = {**made["tower"], "name": "benchmarks.joint_placements:EmulatedJoint"}
    made["train"] = {**made["train"], "window": WINDOW, "epochs": 1}
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(made), encoding="utf-8")
    return load_job(path)


def write_cluster(folder: Path) -> Path:
    """The nodes as a cluster file, from which plans are made."""
    types = {
        name: {
            "resources": {"CPU": kind.cpus, "memory": 2_000_000_000, **({"GPU": kind.gpus} if kind.gpus else {})},
            "labels": {**kind.labels, "hetero/price": PRICES[name]},
            "max_workers": COUNTS[name],
        }
        for name, kind in KINDS.items()
    }
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump({"cluster_name": "unlike", "available_node_types": types}), encoding="utf-8")
    return path


def placements(job: Job, folder: Path, profile: JobProfile, cluster: Path) -> list[tuple[str, Job]]:
    """The job under each of `PLACEMENTS`, and as the fastest plan and the cheapest of half its speed have it."""
    found = [(what, placed(job, nodes)) for what, nodes in PLACEMENTS.items()]
    fastest = planned(job, folder, profile, cluster, throughput=None)
    half = planned(job, folder, profile, cluster, throughput=fastest.plan.throughput / 2)
    for what, file in (("the fastest plan", fastest), ("the cheapest plan of half its speed", half)):
        path = folder / "plan.json"
        save_plan(file, path=path)
        stages = "; ".join(f"{' + '.join(stage.tasks)} on {stage.nodes} {stage.kind}" for stage in file.plan.stages)
        found.append((f"{what}: {stages}", planned_job(job, path=path)))
    return found


def placed(job: Job, nodes: Sequence[tuple[str, Mapping[str, int]]]) -> Job:
    """The job with roles on so many nodes of kinds."""
    record = job.model_dump(mode="python", by_alias=True)
    counts = {role: sum(roles.get(role, 0) for _, roles in nodes) for role in ("readers", "servers", "towers")}
    record["roles"] = {**counts, "nodes": [_node(kind, roles) for kind, roles in nodes]}
    return Job(**record)


def _node(kind: str, roles: Mapping[str, int]) -> dict[str, object]:
    device = {"GPU": 1.0} if KINDS[kind].gpus else {}
    return {"labels": KINDS[kind].labels, "resources": {"CPU": float(KINDS[kind].cpus), **device}, **roles}


def planned(job: Job, folder: Path, profile: JobProfile, cluster: Path, *, throughput: float | None) -> PlanFile:
    file, _ = make_plan(
        job,
        job_path=folder / "job.yaml",
        cluster_path=cluster,
        cluster=load_cluster(cluster),
        throughput=throughput,
        price=None,
        measured=Measured(profile=profile),
    )
    return file


def configuration(job: Job, links: Links) -> Configuration:
    """Who is where, by the labels of the job's nodes."""
    spec = resolve(complete(job))

    def kinds(role: str) -> tuple[str, ...]:
        return tuple(_kind(node.labels) for node in job.roles.nodes for _ in range(node.count * getattr(node, role)))

    return Configuration(
        readers=kinds("readers"),
        servers=kinds("servers"),
        towers=kinds("towers"),
        batch=spec.batch_size,
        window=spec.window,
        calls=links.calls,
        group=links.groups.get(len(kinds("towers")), links.calls),
        dense_bytes=4.0 * sum(parameter.numel() for parameter in make_tower(spec).parameters()),
        groups=len(spec.groups),
        machine_cores=usable_cores(),
        call_cpu_s=links.call_cpu_s,
        message_cpu_s=links.message_cpu_s,
    )


def _kind(labels: Mapping[str, str]) -> str:
    return next(name for name, node in KINDS.items() if node.labels.items() >= labels.items())


def run(job: Job) -> tuple[float, F64]:
    """Train to the end: (samples a second after the start, losses)."""
    spec = replace(resolve(complete(job)), max_steps=SIZE.steps)
    data = DataPass.open(spec.train, phase=Phase.TRAIN, max_steps=SIZE.steps)
    name = f"joint-placement-{time.time_ns()}"
    with opened_run(spec, name=name, placement=Placement(address="connected")) as training:
        outcome = training.train(data, watch=lambda _: None)
        tell(training, outcome)
    ends = outcome.step_ends_t
    first = int(len(ends) * SKIPPED)
    return float(spec.batch_size * (len(ends) - 1 - first) / (ends[-1] - ends[first])), outcome.losses


def add_row(report: Report, what: str, said: Prediction, rates: Sequence[float]) -> float:
    """Add it, and return the error of the prediction."""
    rate = statistics.median(rates)
    error = said.samples_per_s / rate - 1
    report.add(
        what=what,
        predicted=f"{said.samples_per_s:,.0f}",
        measured=f"{rate:,.0f}",
        lowest=f"{min(rates):,.0f}",
        highest=f"{max(rates):,.0f}",
        off=f"{error:+.1%}",
        bound_by=said.bound_by,
        load=f"{os.getloadavg()[0]:.1f}",
    )
    print(report.rows[-1], file=sys.stderr, flush=True)
    return abs(error)


if __name__ == "__main__":
    raise SystemExit(main())
