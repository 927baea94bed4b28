"""`hetero plan`, `hetero profile` and `hetero probe`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from hetero.errors import UserError
from pipelines.options import Address, AsJson, Overrides
from pipelines.output import Output


def plan(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="Job file (YAML).")],
    cluster: Annotated[
        Path, typer.Option("--cluster", metavar="FILE", help="Cluster file (YAML), with facts about the kinds of node.")
    ],
    overrides: Overrides = None,
    throughput: Annotated[
        float | None,
        typer.Option("--throughput", metavar="N", min=1e-6, help="Samples a second: find the cheapest plan."),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option("--price", metavar="MONEY", min=0, help="The most to pay an hour: find the fastest plan."),
    ] = None,
    rows: Annotated[
        int, typer.Option("--rows", metavar="N", min=0, help="Rows expected in all tables, for their memory.")
    ] = 0,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            metavar="FILE",
            help="Measured seconds of tasks. Default: what `hetero profile` left beside the job.",
        ),
    ] = None,
    front: Annotated[bool, typer.Option("--front", help="Also the cheapest plan at each throughput.")] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw price against throughput, as SVG.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Also why each alternative is not taken.")] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Keep the plan, for train --plan.")] = None,
    as_json: AsJson = False,
) -> None:
    """Plan which tasks run on which nodes, and how many of each role. Needs no cluster; the search is exact.

    Without --throughput and --price: the fastest that the cluster's nodes can do. A deep job gets a mesh.

    [bold]Examples[/]

    [cyan]hetero plan examples/criteo_like_dlrm.yaml --cluster cluster.yaml --front[/]

    [cyan]hetero plan JOB --cluster cluster.yaml --throughput 200000 --explain --out plan.json[/]
    """
    from pipelines.deep_plan import deep_planned
    from pipelines.deep_schema import is_deep, load_deep_job
    from pipelines.job import load_job
    from pipelines.joint_plan import joint_planned, lies_on_a_mesh
    from pipelines.plan_command import planned

    output = Output(as_json=as_json)
    if is_deep(job):
        given = {"--rows": rows > 0, "--profile": profile is not None, "--out": out is not None}
        given["--plot"] = plot is not None
        _refuse(given, of="deep jobs", see="docs/plan.md")
        deep = deep_planned(
            load_deep_job(job, overrides=overrides or ()),
            job_path=job,
            cluster_path=cluster,
            throughput=throughput,
            price=price,
            with_front=front,
            with_alternatives=explain,
        )
        output.result(deep.to_dict(), shown=deep.shown())
        return
    loaded = load_job(job, overrides=overrides or ())
    if loaded.features.text and lies_on_a_mesh(loaded, job_path=job, cluster_path=cluster, profile=profile):
        files = {"--plot": plot is not None, "--out": out is not None}
        given = {"--price": price is not None, "--front": front, "--explain": explain, **files}
        _refuse(given, of="text and clicks", see="docs/joint.md")
        both = joint_planned(
            loaded, job_path=job, cluster_path=cluster, throughput=throughput, rows=rows, profile=profile
        )
        output.result(both.to_dict(), shown=both.shown())
        return
    result = planned(
        loaded,
        job_path=job,
        cluster_path=cluster,
        throughput=throughput,
        price=price,
        rows=rows,
        profile=profile,
        with_front=front,
        with_alternatives=explain,
        plot=plot,
        out=out,
    )
    output.result(result.to_dict(), shown=result.shown())


def _refuse(given: Mapping[str, bool], *, of: str, see: str) -> None:
    """Raises UserError for an option that was given and that plans of such jobs have not."""
    for name in (name for name, is_given in given.items() if is_given):
        raise UserError(f"{name}: plans of {of} have none; leave it out ({see})")


def profile(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="Job file (YAML).")],
    overrides: Overrides = None,
    cluster: Annotated[
        Path | None,
        typer.Option("--cluster", metavar="FILE", help="Cluster file: measure on a node of each kind; with --address."),
    ] = None,
    address: Address = None,
    kind: Annotated[
        str, typer.Option("--kind", metavar="NAME", help="The kind of node that this machine is, without --cluster.")
    ] = "here",
    rows: Annotated[
        list[int] | None,
        typer.Option("--rows", metavar="N", min=1, help="Rows of a batch to measure; may be given many times."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to keep it. Default: beside the job.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure each task of a job, one at a time: reading, windows, lookup, every block of the tower, the optimizer.

    What is kept beside the job, `hetero plan` reads. Trains a few steps on the job's data and keeps nothing of them.

    [bold]Examples[/]

    [cyan]hetero profile examples/movielens.yaml --kind cpu[/]

    [cyan]hetero profile JOB --cluster cluster.yaml --address auto[/]
    """
    from pipelines.deep_schema import is_deep
    from pipelines.job import load_job
    from pipelines.plan import profile_path
    from pipelines.profile import profile_job, profile_report, save_profile

    output = Output(as_json=as_json)
    if is_deep(job):
        raise UserError(
            f"{job}: is a deep job; its ranks measure a block, their device and links before the first step of every "
            "run, and `hetero plan` needs no profile of it"
        )
    loaded = load_job(job, overrides=overrides or ())
    with output.console.status("measuring") as status:
        found = profile_job(
            loaded,
            job_path=job,
            cluster_path=cluster,
            address=address,
            sizes=rows or (),
            kind=kind,
            told=status.update,
        )
    path = out or profile_path(job)
    save_profile(found, path=path)
    output.result(found.to_dict(), shown=profile_report(found, path=path))


def probe(
    address: Address = None,
    disk: Annotated[
        list[Path] | None,
        typer.Option("--disk", metavar="DIR", help="A folder on a disk to measure; may be given many times."),
    ] = None,
    rates: Annotated[bool, typer.Option("--rates/--no-rates", help="Measure cores, memory, disks, devices.")] = True,
    cluster: Annotated[
        Path | None, typer.Option("--cluster-file", metavar="FILE", help="Also write a cluster file for `hetero plan`.")
    ] = None,
    known: Annotated[bool, typer.Option("--known", help="Only show the table of known devices and links.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look at this machine, or at every node of a cluster: cores, memory, disks, accelerators, and links between nodes.

    Disks are measured with a file of 128 MB each, links through the object store and through collectives.

    [bold]Examples[/]

    [cyan]hetero probe --disk /mnt/ssd[/]

    [cyan]hetero probe --address auto --cluster-file cluster.yaml[/]
    """
    from dataclasses import asdict

    from hetero.hardware.devices import DEVICES, LINKS
    from pipelines.probe import known_devices, write_cluster_file
    from pipelines.probe import probe as look

    output = Output(as_json=as_json)
    if known:
        record = {
            "devices": [asdict(each) for each in DEVICES.values()],
            "links": [asdict(each) for each in LINKS.values()],
        }
        output.result(record, shown=known_devices())
        return
    with output.console.status("measuring"):
        result = look(address=address, disks=disk or (), rates=rates)
    if cluster is not None:
        write_cluster_file(result, path=cluster)
    output.result(result.to_dict(), shown=result.shown())
