"""What placements were predicted to reach, beside what they reach: on a cluster of unlike nodes on this machine.

    python -m benchmarks.placement [--quick] [--json] [--save]

Raylets with labels stand for nodes: two of a CPU class, two of a fast and two of a slow accelerator class. A tower of
the examples' DLRM, made small, computes on its node's own core and waits besides as long as its class's device would
take (`benchmarks.emulated`). Every task is measured by itself on each class (`hetero profile`) before anything runs, as
are calls and collectives between nodes; predictions come from these alone and are never fitted to the runs. All nodes
share this machine's cores, which the prediction counts. Then shares of a batch that follow measured speed, from equal
ones; and a plan from that profile, obeyed. --quick: shorter runs. With --folder a run may be done in pieces. The last
column is the machine's load: where others compute, several towers reach less.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from actors.unlike_nodes import EmulatedNode, unlike_nodes
from benchmarks.node_links import Links, measured_links
from benchmarks.report import Report, add_arguments, finish
from hetero.hardware.devices import Link
from hetero.hardware.probe import usable_cores
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass, RunProgress, TrainOutcome
from hetero.loops.shares import whole_parts
from hetero.planning.predict import Configuration, Prediction, predict
from hetero.planning.task_profile import JobProfile
from hetero.records import SharesFrom, ShareSpec
from hetero.towers.build import make_tower
from pipelines.build import Placement, opened_run
from pipelines.cluster_file import load_cluster
from pipelines.job import Job, load_job
from pipelines.plan import Measured, make_plan
from pipelines.plan_file import planned_job, save_plan
from pipelines.profile import profile_job, save_profile
from pipelines.resolve import complete, resolve
from pipelines.synthetic import CriteoLike, make_criteo_like

EXAMPLE = Path(__file__).parents[1] / "examples" / "criteo_like_dlrm.yaml"
ROWS = 200_000
BATCH = 512
ROW_US = {"v100-16gb": 300.0, "t4": 900.0, "cpu": 2000.0}
"""Long beside what a row takes of the cores, 20 to 30 us over all roles, which every node of this machine shares."""
KINDS: Mapping[str, EmulatedNode] = {
    "cpu": EmulatedNode(cpus=2, labels={"role": "cpu"}),
    "fast": EmulatedNode(cpus=1, gpus=1, labels={"role": "gpu", "hetero/accelerator": "v100-16gb"}),
    "slow": EmulatedNode(cpus=1, gpus=1, labels={"role": "gpu", "hetero/accelerator": "t4"}),
}
PRICES = {"cpu": "0.8", "fast": "3.0", "slow": "1.2"}
EACH = 2
CONVERGING = (("fast", "slow"), ("fast", "fast", "slow"))
_LEAST_STEPS = 24
_SKIPPED = 0.25
"""Of a run's steps, at its start, in whole windows: they fill and buffers grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A placement. towers: kinds. readers, servers: how many, on CPU nodes."""

    towers: tuple[str, ...]
    readers: int = 1
    servers: int = 1
    window: int = 8
    batch: int = BATCH

    def __str__(self) -> str:
        towers = " + ".join(f"{count} {kind}" for kind, count in Counter(self.towers).items())
        return (
            f"towers {towers}; readers {self.readers}, servers {self.servers}; window {self.window}, batch {self.batch}"
        )


CASES = (
    Case(towers=("cpu",)),
    Case(towers=("slow",)),
    Case(towers=("fast",)),
    Case(towers=("fast",), window=0),
    Case(towers=("fast",), batch=1024),
    Case(towers=("slow", "slow")),
    Case(towers=("fast", "fast")),
    Case(towers=("fast", "slow")),
    Case(towers=("fast", "slow"), window=0),
    Case(towers=("fast", "slow"), servers=2, readers=2),
    Case(towers=("fast", "slow", "slow")),
    Case(towers=("fast", "fast", "slow")),
    Case(towers=("fast", "fast", "slow", "slow")),
    Case(towers=("fast", "slow", "cpu")),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--folder", type=Path, help="keep data, profile and what was measured there, and go on with it")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin nothing after so many")
    options = parser.parse_args()
    report, end_t = Report("placement"), time.monotonic() + 60 * options.minutes
    seconds = 3.0 if options.quick else 8.0
    with (
        tempfile.TemporaryDirectory() as name,
        unlike_nodes([node for node in KINDS.values() for _ in range(EACH)]) as address,
    ):
        folder = options.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        bench = prepared(folder, address=address, seconds=seconds)
        kept = Kept(folder / "measured.json", end_t=end_t)
        for case in CASES:
            kept.row(str(case), lambda case=case: compare(bench, case))  # type: ignore[misc]
        for towers in CONVERGING:
            kept.row(f"shares of {towers}", lambda towers=towers: converge(bench, towers))  # type: ignore[misc]
        kept.row("plan", lambda: obey(bench))
    judge(report, kept)
    return finish(report, options)


@dataclass(slots=True)
class Kept:
    """Rows that were measured, in a file. Nothing begins after end_t, monotonic seconds."""

    path: Path
    end_t: float
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path.is_file():
            self.rows = json.loads(self.path.read_text(encoding="utf-8"))

    def row(self, name: str, measure: Callable[[], dict[str, Any]]) -> None:
        """Measure it, unless it is there."""
        if name in self.rows or time.monotonic() > self.end_t:
            return
        self.rows[name] = measure()
        self.path.write_text(json.dumps(self.rows), encoding="utf-8")
        print(f"{time.strftime('%H:%M:%S')} {self.rows[name]}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all parts of the benchmark go by."""

    job: Job
    job_path: Path
    cluster_path: Path
    profile: JobProfile
    links: Links
    seconds: float


def prepared(folder: Path, *, address: str, seconds: float) -> Bench:
    """Data, the cluster's file, and what every task and link takes, measured before anything runs."""
    job, cluster_path = made_job(folder), write_cluster(folder)
    profile_path, links_path = folder / "job.profile.json", folder / "links.json"
    if not links_path.is_file():
        profile = profile_job(job, job_path=folder / "job.yaml", cluster_path=cluster_path, address=address)
        save_profile(profile, path=profile_path)
        links = measured_links()
        links_path.write_text(json.dumps(asdict(links)), encoding="utf-8")
    record = json.loads(links_path.read_text(encoding="utf-8"))
    return Bench(
        job=job,
        job_path=folder / "job.yaml",
        cluster_path=cluster_path,
        profile=JobProfile.read(profile_path),
        links=Links(
            calls=Link(**record["calls"]),
            groups={int(n): Link(**link) for n, link in record["groups"].items()},
            call_cpu_s=record["call_cpu_s"],
            message_cpu_s=record["message_cpu_s"],
        ),
        seconds=seconds,
    )


def judge(report: Report, kept: Kept) -> None:
    """All rows, and what must hold of them."""
    report.rows.extend(kept.rows.values())
    errors = [abs(kept.rows[str(case)]["off"]) for case in CASES if str(case) in kept.rows]
    report.check("configurations, predicted beside measured", len(errors), at_least=12)
    if errors:
        report.check("median error of the predicted samples/s", statistics.median(errors), at_most=0.15)
    for towers in CONVERGING:
        name, what = f"shares of {towers}", f"shares of {', '.join(towers)}: distance from the ratio of speeds"
        if name in kept.rows:
            report.check(what, abs(kept.rows[name]["off"]), at_most=0.1)
        else:
            report.not_run(what, target="<= 0.1", why="--minutes")
    what = "the planned run on CPU nodes and accelerators: error of the predicted samples/s"
    if "plan" in kept.rows:
        report.check(what, abs(kept.rows["plan"]["off"]), at_most=0.15)
    else:
        report.not_run(what, target="<= 0.15", why="--minutes")


def made_job(folder: Path) -> Job:
    make_criteo_like(folder, recipe=CriteoLike(rows=ROWS, test_rows=1024), progress=lambda _: None)
    return load_job(
        EXAMPLE,
        overrides=[
            f"data.train={folder / 'train.parquet'}",
            f"data.test={folder / 'test.parquet'}",
            "tower.name=benchmarks.emulated:EmulatedDLRM",
            f"tower.args={{row_us: {ROW_US}}}",
            f"train.batch_size={BATCH}",
            "train.window=8",
            "train.epochs=100",
        ],
    )


def write_cluster(folder: Path) -> Path:
    """The cluster as a file, from which plans are made."""
    types = {
        name: {
            "resources": {
                "CPU": kind.cpus,
                "memory": 2_000_000_000,
                **({"GPU": kind.gpus} if kind.gpus else {}),
            },
            "labels": {**kind.labels, "hetero/price": PRICES[name]},
            "max_workers": EACH,
        }
        for name, kind in KINDS.items()
    }
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump({"cluster_name": "unlike", "available_node_types": types}), encoding="utf-8")
    return path


def placed(job: Job, case: Case) -> Job:
    """The job on the nodes of a case."""
    nodes: list[dict[str, object]] = []
    for number in range(max(case.readers, case.servers)):
        both = {"readers": int(number < case.readers), "servers": int(number < case.servers)}
        nodes.append({"labels": KINDS["cpu"].labels, "resources": {"CPU": 1.0}, **both})
    for kind in case.towers:
        device = {"GPU": 1.0} if KINDS[kind].gpus else {}
        nodes.append({"labels": KINDS[kind].labels, "resources": {"CPU": 1.0, **device}, "towers": 1})
    record = job.model_dump(mode="python", by_alias=True)
    record["roles"] = {
        "readers": case.readers,
        "servers": case.servers,
        "towers": len(case.towers),
        "nodes": nodes,
    }
    record["train"] = {**record["train"], "batch_size": case.batch, "window": case.window}
    return Job(**record)


def configuration(job: Job, case: Case, links: Links) -> Configuration:
    module = make_tower(resolve(job))
    return Configuration(
        readers=("cpu",) * case.readers,
        servers=("cpu",) * case.servers,
        towers=case.towers,
        batch=case.batch,
        window=case.window,
        calls=links.calls,
        group=links.groups.get(len(case.towers), links.calls),
        dense_bytes=4.0 * sum(parameter.numel() for parameter in module.parameters()),
        groups=len(resolve(job).groups),
        machine_cores=usable_cores(),
        call_cpu_s=links.call_cpu_s,
        message_cpu_s=links.message_cpu_s,
    )


def compare(bench: Bench, case: Case) -> dict[str, Any]:
    """Run a case with the predicted shares."""
    said = predict(bench.profile, configuration(bench.job, case, bench.links))
    shares = ShareSpec(first=whole_parts(said.shares))
    rate, _ = run(placed(bench.job, case), shares=shares, said=said, seconds=bench.seconds)
    return _row(str(case), said, rate)


def _row(what: str, said: Prediction, rate: float) -> dict[str, Any]:
    return {
        "what": what,
        "predicted": said.samples_per_s,
        "measured": rate,
        "off": said.samples_per_s / rate - 1,
        "bound_by": said.bound_by,
        "shares": ", ".join(f"{share:.1%}" for share in said.shares),
        "load": round(os.getloadavg()[0], 1),
    }


def run(job: Job, *, shares: ShareSpec, said: Prediction, seconds: float) -> tuple[float, list[SharesFrom]]:
    """Train whole windows for about so long: (samples a second after the start, changes of shares)."""
    steps = _whole_windows(max(_LEAST_STEPS, seconds / said.step_s), window=job.train.window)
    spec = replace(resolve(complete(job)), shares=shares, max_steps=steps)
    data = DataPass.open(spec.train, phase=Phase.TRAIN, epochs=spec.epochs, max_steps=steps)
    changes: list[SharesFrom] = []

    def watch(progress: RunProgress) -> None:
        changes.extend(progress.shares)

    name = f"placement-{time.time_ns()}"
    with opened_run(spec, name=name, placement=Placement(address="connected")) as training:
        outcome = training.train(data, watch=watch)
    spent = {role: round(1e3 * s / steps, 2) for role, s in outcome.waits.items()}
    spent |= {role: round(1e3 * s / steps, 2) for role, s in outcome.cpu_s.items()}
    took = [1e3 * (after - before) for before, after in itertools.pairwise(outcome.step_ends_t)]
    told = f"steps {statistics.median(took):.0f}, the longest {max(took):.0f} ms; of a step waited for and CPU: {spent}"
    print(told, file=sys.stderr, flush=True)
    return _rate(outcome, batch=spec.batch_size, window=spec.window), changes


def _whole_windows(steps: float, *, window: int | str) -> int:
    length = max(int(window), 1)
    return math.ceil(steps / length) * length


def _rate(outcome: TrainOutcome, *, batch: int, window: int) -> float:
    """Samples a second from where the run had come into its stride to its end."""
    ends = outcome.step_ends_t
    first = _whole_windows(_SKIPPED * len(ends), window=window)
    return float(batch * (len(ends) - first) / (ends[-1] - ends[first - 1]))


def converge(bench: Bench, towers: tuple[str, ...]) -> dict[str, Any]:
    """From equal shares to those of the devices' speeds, by what the towers tell of their steps: the first tower's
    share by the last's."""
    case = Case(towers=towers, window=2)  # shares change some windows after they are asked for
    said = predict(bench.profile, configuration(bench.job, case, bench.links))
    shares = ShareSpec(measured=True)
    _, changes = run(placed(bench.job, case), shares=shares, said=said, seconds=3 * bench.seconds + 6)
    parts = changes[-1].parts
    ratio, wanted = parts[0] / parts[-1], said.shares[0] / said.shares[-1]
    return {
        "what": f"shares of {', '.join(towers)}, from equal ones, {len(changes) - 1} changes: first / last",
        "predicted": wanted,
        "measured": ratio,
        "off": wanted / ratio - 1,
        "bound_by": "",
        "shares": ", ".join(f"{part / sum(parts):.1%}" for part in parts),
        "load": round(os.getloadavg()[0], 1),
    }


def obey(bench: Bench) -> dict[str, Any]:
    """The fastest plan, kept as a file and obeyed."""
    file, _ = make_plan(
        bench.job,
        job_path=bench.job_path,
        cluster_path=bench.cluster_path,
        cluster=load_cluster(bench.cluster_path),
        throughput=None,
        price=None,
        measured=Measured(profile=bench.profile),
    )
    path = bench.job_path.with_name("plan.json")
    save_plan(file, path=path)
    obeyed = planned_job(bench.job, path=path)
    kinds = tuple(kind for kind, count in _towers(file.plan.stages) for _ in range(count))
    case = Case(towers=kinds, readers=file.roles["readers"].count, servers=file.roles["servers"].count)
    said = predict(bench.profile, configuration(bench.job, case, bench.links))
    rate, _ = run(obeyed, shares=resolve(obeyed).shares, said=said, seconds=bench.seconds)
    return _row(f"plan, the fastest: {case}", said, rate)


def _towers(stages: Sequence[Any]) -> list[tuple[str, int]]:
    return [(stage.kind, stage.nodes) for stage in stages if "tower" in stage.tasks]


if __name__ == "__main__":
    sys.exit(main())
