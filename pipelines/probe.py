"""`hetero probe`: what this machine, or every node of a cluster, is and was measured to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Group, RenderableType
from rich.table import Table

from hetero.errors import UserError
from hetero.hardware.devices import DEVICES, LINKS
from hetero.hardware.probe import Machine, probe_machine
from hetero.hardware.rates import MachineRates, measure_rates
from hetero.observe.run_folder import write_whole

if TYPE_CHECKING:
    from actors.links import PairLinks

_GB, _GIB = 1e9, 1 << 30
_SHARE_OF_MEMORY = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """One node. labels, resources: as Ray has them, empty for a machine without it."""

    name: str
    labels: Mapping[str, str]
    resources: Mapping[str, float]
    machine: Machine
    rates: MachineRates | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """All nodes and the links between them."""

    nodes: tuple[Probed, ...]
    links: tuple[PairLinks, ...]

    def to_dict(self) -> dict[str, object]:
        """The command's JSON."""
        return {"nodes": [asdict(node) for node in self.nodes], "links": [asdict(link) for link in self.links]}

    def shown(self) -> RenderableType:
        parts: list[RenderableType] = [_nodes(self.nodes)]
        if any(node.rates for node in self.nodes):
            parts += [_rates(self.nodes), _disks(self.nodes)]
        if any(node.machine.accelerators for node in self.nodes):
            parts.append(_accelerators(self.nodes))
        if self.links:
            parts.append(_links(self))
        return Group(*parts)


def probe(*, address: str | None, disks: Sequence[Path], rates: bool = True) -> ProbeResult:
    """Look at this machine, or at every node of the cluster at `address`. disks: folders; default, the current one.

    Raises UserError for a folder that cannot be written and for a cluster that does not answer.
    """
    folders = tuple(disks) or (Path.cwd(),)
    try:
        if address is None:
            measured = measure_rates(disks=folders) if rates else None
            machine = probe_machine(disk_path=folders[0])
            own = Probed(name=machine.hostname, labels={}, resources={}, machine=machine, rates=measured)
            return ProbeResult(nodes=(own,), links=())
        return _of_cluster(address, [str(folder) for folder in folders], rates=rates)
    except OSError as error:
        raise UserError(f"probe: {error}; give folders that can be written with --disk") from error


def _of_cluster(address: str, disks: list[str], *, rates: bool) -> ProbeResult:
    from actors.context import connected_with
    from actors.links import links_between, look_at_nodes, probes

    with connected_with(0.0, address=address), probes() as made:
        facts = look_at_nodes(made, disks=disks, rates=rates)
        links = links_between(made) if len(made) > 1 else []
    nodes = tuple(
        Probed(
            name=f"{number}: {each.address}",
            labels=each.labels,
            resources=each.resources,
            machine=each.machine,
            rates=each.rates,
        )
        for number, each in enumerate(facts)
    )
    return ProbeResult(nodes=nodes, links=tuple(links))


def write_cluster_file(result: ProbeResult, *, path: Path) -> None:
    """A cluster file for planning: nodes that are equal are one type. Prices are 1 and accelerators may be unknown to
    the table of devices: both are for the user to fill in. The network is the slowest link that was measured."""
    slowest = min((link.store.bytes_per_s for link in result.links), default=0.0)
    types: dict[str, dict[str, Any]] = {}
    for node in result.nodes:
        found = _node_type(node, slowest)
        same = next(
            (each for each in types.values() if {**each, "max_workers": 0} == {**found, "max_workers": 0}), None
        )
        if same is not None:
            same["max_workers"] += 1
        else:
            types[f"kind{len(types)}"] = found
    text = yaml.safe_dump({"cluster_name": "probed", "available_node_types": types}, sort_keys=False)
    write_whole(
        path, "# As `hetero probe` found the nodes. Write prices and, where a name is not known, devices in.\n" + text
    )


def _node_type(node: Probed, slowest: float) -> dict[str, Any]:
    machine = node.machine
    own = {name: value for name, value in node.labels.items() if not name.startswith("ray.io/")}
    labels = {**own, "hetero/price": own.get("hetero/price", "1")}
    gpus = int(node.resources.get("GPU", len(machine.accelerators)))
    if gpus and "hetero/accelerator" not in labels:
        labels["hetero/accelerator"] = _known_device(machine)
    if slowest:
        labels["hetero/network"] = f"{slowest / _GB:.3g}"
    resources: dict[str, Any] = {
        "CPU": int(node.resources.get("CPU", machine.cores)),
        "memory": int(_SHARE_OF_MEMORY * machine.memory_bytes),
        **({"GPU": gpus} if gpus else {}),
    }
    return {"resources": resources, "labels": labels, "max_workers": 1}


def _known_device(machine: Machine) -> str:
    """The name in the table of devices that torch's name holds, such as `h200` of `NVIDIA H200`."""
    names = [each.name.lower().replace(" ", "-") for each in machine.accelerators]
    sure = [known for known in DEVICES if any(known in name for name in names)]
    part = [known for known in DEVICES if any(known.partition("-")[0] in name for name in names)]
    return (sure or part or ["unknown"])[0]


def known_devices() -> RenderableType:
    """The table of devices and links that plans use without the machine."""
    devices = _table("devices", "name", "half TFLOP/s", "fp32 TFLOP/s", "memory GiB", "memory GB/s", "source")
    for each in DEVICES.values():
        devices.add_row(
            each.name,
            f"{each.half_flops / 1e12:g}",
            f"{each.single_flops / 1e12:g}",
            f"{each.memory_bytes / _GIB:.0f}",
            f"{each.memory_bytes_per_s / _GB:g}",
            each.source,
        )
    links = _table("links", "name", "GB/s", "latency us", "source")
    for link in LINKS.values():
        links.add_row(link.name, f"{link.bytes_per_s / _GB:g}", f"{1e6 * link.latency_s:g}", link.source)
    return Group(devices, links)


def _nodes(nodes: Sequence[Probed]) -> Table:
    table = _table("nodes", "node", "cores", "CPU", "instructions", "memory GiB", "NUMA", "accelerators", "labels")
    for node in nodes:
        machine = node.machine
        numa = len(node.rates.numa) if node.rates else 0
        table.add_row(
            node.name,
            f"{machine.cores:g} of {machine.machine_cores}",
            machine.cpu_model,
            " ".join(machine.cpu_flags),
            f"{machine.memory_bytes / _GIB:.0f}",
            f"{numa} nodes" if numa else "",
            ", ".join(each.name for each in machine.accelerators) or "none",
            ", ".join(f"{k}={v}" for k, v in node.labels.items() if not k.startswith("ray.io/")),
        )
    return table


def _rates(nodes: Sequence[Probed]) -> Table:
    table = _table("measured, all cores", "node", "fp32 GFLOP/s", "bf16 GFLOP/s", "memory GB/s, one thread")
    for node in nodes:
        if node.rates:
            rates = node.rates
            values = (rates.single_flops / 1e9, rates.half_flops / 1e9, rates.memory_bytes_per_s / _GB)
            table.add_row(node.name, *(f"{value:,.1f}" for value in values))
    return table


def _disks(nodes: Sequence[Probed]) -> Table:
    table = _table("disks", "node", "folder", "write MB/s", "read MB/s", "random 4 KiB reads/s", "past the cache")
    for node in nodes:
        for disk in node.rates.disks if node.rates else ():
            table.add_row(
                node.name,
                disk.path,
                f"{disk.write_bytes_per_s / 1e6:,.0f}",
                f"{disk.read_bytes_per_s / 1e6:,.0f}",
                f"{disk.random_reads_per_s:,.0f}",
                "yes" if disk.direct else "no",
            )
    return table


def _accelerators(nodes: Sequence[Probed]) -> Table:
    table = _table(
        "accelerators", "node", "name", "memory GiB", "bf16 TFLOP/s", "fp32 TFLOP/s", "memory GB/s", "from host GB/s"
    )
    for node in nodes:
        measured = {each.index: each for each in node.rates.accelerators} if node.rates else {}
        for each in node.machine.accelerators:
            rates = measured.get(each.index)
            values = (
                ()
                if rates is None
                else (
                    rates.half_flops / 1e12,
                    rates.single_flops / 1e12,
                    rates.memory_bytes_per_s / _GB,
                    rates.from_host_bytes_per_s / _GB,
                )
            )
            table.add_row(node.name, each.name, f"{each.memory_bytes / _GIB:.0f}", *(f"{v:,.1f}" for v in values))
    return table


def _links(result: ProbeResult) -> Table:
    table = _table(
        "links", "between", "object store: call ms", "GB/s", "collectives: message ms", "GB/s", justify_from=1
    )
    for pair in result.links:
        table.add_row(
            f"{result.nodes[pair.first].name} and {result.nodes[pair.second].name}",
            f"{1e3 * pair.store.latency_s:.2f}",
            f"{pair.store.bytes_per_s / _GB:.2f}",
            f"{1e3 * pair.collective.latency_s:.2f}",
            f"{pair.collective.bytes_per_s / _GB:.2f}",
        )
    return table


def _table(title: str, *columns: str, justify_from: int = 99) -> Table:
    table = Table(title=title, title_justify="left", box=None)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number >= justify_from else "left")
    return table
