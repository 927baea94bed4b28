"""`hetero profile`: a job's tasks measured on each kind of node, kept in a file beside the job that plans read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table

from hetero.errors import PlanError
from hetero.hardware.probe import probe_machine
from hetero.loops.profiling import default_sizes, profile_node
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass
from hetero.loops.warm import warm_kernels
from hetero.observe.run_folder import write_whole
from hetero.planning.task_profile import (
    READER_TASKS,
    ROUTING_TASKS,
    SEQUENCER_TASKS,
    SERVER_TASKS,
    TOWER_TASKS,
    JobProfile,
    NodeProfile,
)
from hetero.records import JobSpec
from hetero.towers.build import make_tower
from pipelines.build import check_tower
from pipelines.cluster_file import load_cluster
from pipelines.job import Job, complete, resolve
from pipelines.plan_file import job_fingerprint

_DEADLINE_S = 600.0
HERE = "here"


def profile_job(
    job: Job,
    *,
    job_path: Path,
    cluster_path: Path | None = None,
    address: str | None = None,
    sizes: Sequence[int] = (),
    kind: str = HERE,
    told: Callable[[str], None] = lambda _: None,
) -> JobProfile:
    """Measure the job: in this process, named `kind`; or on a node of each kind of a cluster file that `address` has.

    Raises PlanError for a cluster file without an address, and what `on_node` raises.
    """
    fingerprint = job_fingerprint(job)
    spec = resolve(complete(job))
    check_tower(spec)
    wanted = tuple(sizes) or default_sizes(spec)
    if cluster_path is None and address is None:
        told(f"measuring on this machine, batches of {', '.join(map(str, wanted))} rows")
        nodes = [measure(spec, kind, wanted)]
    elif cluster_path is None or address is None:
        raise PlanError("profile: --cluster names the kinds of node and --address the cluster they are in; give both")
    else:
        nodes = _on_cluster(spec, cluster_path=cluster_path, address=address, sizes=wanted, told=told)
    return JobProfile(job=str(job_path), job_fingerprint=fingerprint, nodes=tuple(nodes))


def measure(spec: JobSpec, kind: str, sizes: Sequence[int]) -> NodeProfile:
    """Measure in this process."""
    warm_kernels(spec)
    data = DataPass.open(spec.train, phase=Phase.TRAIN, epochs=spec.epochs, max_steps=spec.max_steps)
    return profile_node(
        spec, kind=kind, machine=probe_machine(), data=data, make=partial(make_tower, spec), sizes=sizes
    )


def save_profile(profile: JobProfile, *, path: Path) -> None:
    """Write it, whole."""
    write_whole(path, json.dumps(profile.to_dict(), indent=1) + "\n")


def _on_cluster(
    spec: JobSpec, *, cluster_path: Path, address: str, sizes: Sequence[int], told: Callable[[str], None]
) -> list[NodeProfile]:
    from actors.context import connected_with
    from actors.profiling import on_node

    paths = tuple(path for path in sys.path if path)
    nodes = []
    with connected_with(1.0, address=address):
        for kind in load_cluster(cluster_path).kinds:
            told(f"measuring on {kind.name}, batches of {', '.join(map(str, sizes))} rows")
            nodes.append(
                on_node(
                    partial(measure, spec, kind.name, sizes),
                    labels=kind.labels,
                    cpus=min(float(spec.towers.threads), kind.cores),
                    import_paths=paths,
                    deadline_s=_DEADLINE_S,
                )
            )
    return nodes


def profile_report(profile: JobProfile, *, path: Path) -> RenderableType:
    """Microseconds a row of each task at the largest batch, by kind of node; blocks under the tower's."""
    parts: list[RenderableType] = [f"{profile.job}: kept in {path}"]
    for node in profile.nodes:
        table = Table(title=f"{node.kind}: {node.hardware}", title_justify="left", box=None)
        for name in ("task", "role", "rows", "us a row", "CPU us a row", "bytes a row", "GFLOP/s"):
            table.add_column(name, justify="left" if name in ("task", "role") else "right")
        for role, names in (
            ("reader", READER_TASKS),
            ("sequencer", SEQUENCER_TASKS),
            ("server", SERVER_TASKS),
            ("tower", (*ROUTING_TASKS, *TOWER_TASKS, *(name for name in node.tasks if "/" in name))),
        ):
            for name in names:
                for point in node.tasks[name]:
                    table.add_row(
                        name,
                        role,
                        f"{point.rows:,}",
                        f"{1e6 * point.seconds / point.rows:.3f}",
                        f"{1e6 * point.cpu_s / point.rows:.3f}",
                        f"{point.bytes / point.rows:,.0f}" if point.bytes else "",
                        f"{point.flops / point.seconds / 1e9:.1f}" if point.flops and point.seconds else "",
                    )
        parts.append(table)
    return Group(*parts)
