"""What each task of a job was measured to take on each kind of node, kept beside the job and read by the planner.

    read > parse > dedup | window | lookup, push | hash > gather > forward > backward > return > optimizer
    \\_____ reader _____/ sequencer \\__ server __/ \\______________________ tower ____________________/

Blocks of the tower stand beside them as `forward/<block>` and `backward/<block>`, and are in `forward` and `backward`.
A tower that reads texts has a thread for rows: `beside gather` and `beside return` are the seconds of reading and of
its backward pass, in `forward` and `backward` too, while which those two go on, and the update of dense parameters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hetero.errors import PlanError
from hetero.planning.tasks import Usage
from hetero.records.cluster import ClusterSpec

VERSION = 1
READER_TASKS = ("read", "parse", "dedup")
SEQUENCER_TASKS = ("window",)
SERVER_TASKS = ("lookup", "push")
ROUTING_TASKS = ("hash",)
"""Of towers, where there are several servers among which keys are dealt out."""
TOWER_TASKS = ("gather", "forward", "backward", "return", "optimizer")
BESIDE_GATHER, BESIDE_RETURN = "beside gather", "beside return"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One task on a batch of `rows`: seconds, seconds of CPU time over all threads, bytes it hands on, FLOPs."""

    rows: int
    seconds: float
    cpu_s: float = 0.0
    bytes: float = 0.0
    flops: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProfile:
    """One kind of node. hardware: in words; fingerprint: of it. threads: of a tower. tasks: points by rows."""

    kind: str
    hardware: str
    fingerprint: str
    threads: int
    tasks: Mapping[str, tuple[Point, ...]]

    def seconds(self, names: Iterable[str], rows: float) -> float:
        """Of tasks together, on a batch of `rows`."""
        return sum(_between(self.tasks.get(name, ()), rows, "seconds") for name in names)

    def tower_s(
        self, rows: float, *, pull_s: float = 0.0, push_s: float = 0.0, is_apart: bool = True, is_alone: bool = True
    ) -> float:
        """Of a tower's step. pull_s, push_s: what it waits besides, before it has rows and after it knows their
        gradients. is_apart: rows come and go in a thread of their own, where texts are read meanwhile. is_alone: no
        other tower waits for the gradients, which may go while the next step begins."""
        whole = self.seconds(TOWER_TASKS, rows) + pull_s + push_s
        if not is_apart or BESIDE_GATHER not in self.tasks:
            return whole
        pull_s += self.seconds(("gather",), rows)
        push_s += self.seconds(("return",), rows)
        if is_alone:
            return whole - min(pull_s + push_s, self.seconds((BESIDE_RETURN, "optimizer", BESIDE_GATHER), rows))
        return (
            whole
            - min(pull_s, self.seconds((BESIDE_GATHER,), rows))
            - min(push_s, self.seconds((BESIDE_RETURN,), rows))
        )

    def cpu_s(self, names: Iterable[str], rows: float) -> float:
        """CPU time of tasks together, on a batch of `rows`."""
        return sum(_between(self.tasks.get(name, ()), rows, "cpu_s") for name in names)

    def bytes(self, name: str, rows: float) -> float:
        """What a task hands on of a batch of `rows`."""
        return _between(self.tasks.get(name, ()), rows, "bytes")

    def usage(self, task: str, *, rows: float, cores: float, accelerators: int) -> Usage | None:
        """Seconds a sample of a whole node at batches of `rows`, of a task of the planner; None if not measured.

        A tower computes in one thread that waits for its own device, so its seconds are those of a device; its CPU time
        and that of other roles share the cores.
        """
        names = {"lookup": SERVER_TASKS, "tower": TOWER_TASKS}.get(task, (task,))
        if not all(name in self.tasks for name in names):
            return None
        cpu_s = self.cpu_s(names, rows) / rows / cores
        if task != "tower":
            return Usage(cpu_s=cpu_s)
        return Usage(cpu_s=cpu_s, device_s=self.tower_s(rows) / rows / max(accelerators, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProfile:
    """A job on all kinds of node it was measured on."""

    job: str
    job_fingerprint: str
    nodes: tuple[NodeProfile, ...]

    def of(self, kind: str) -> NodeProfile:
        """Of one kind. Raises PlanError for one that was not measured."""
        found = next((node for node in self.nodes if node.kind == kind), None)
        if found is None:
            there = ", ".join(node.kind for node in self.nodes)
            raise PlanError(f"{self.job} was not measured on `{kind}` (on {there}); hetero profile {self.job}")
        return found

    def usages(self, *, cluster: ClusterSpec, rows: float) -> dict[str, dict[str, Usage]]:
        """By task and kind of node, at batches of `rows` a tower."""
        found: dict[str, dict[str, Usage]] = {}
        for node in self.nodes:
            kind = next((each for each in cluster.kinds if each.name == node.kind), None)
            for task in ("read", "parse", "dedup", "lookup", "tower") if kind else ():
                assert kind is not None
                usage = node.usage(task, rows=rows, cores=kind.cores, accelerators=kind.accelerators)
                if usage is not None:
                    found.setdefault(task, {})[node.kind] = usage
        return found

    def to_dict(self) -> dict[str, object]:
        """The file's JSON."""
        return {"version": VERSION, **asdict(self)}

    @staticmethod
    def read(path: Path) -> JobProfile:
        """A profile that was written. Raises PlanError for anything else."""
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["version"] != VERSION:
                raise PlanError(f"{path}: is a profile of version {record['version']}, this hetero reads {VERSION}")
            nodes = tuple(
                NodeProfile(
                    **{
                        **node,
                        "tasks": {
                            name: tuple(Point(**point) for point in each) for name, each in node["tasks"].items()
                        },
                    }
                )
                for node in record["nodes"]
            )
            return JobProfile(job=record["job"], job_fingerprint=record["job_fingerprint"], nodes=nodes)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise PlanError(f"{path}: is no profile of `hetero profile` ({type(error).__name__}: {error})") from None


def _between(points: Sequence[Point], rows: float, name: str) -> float:
    """Between two points along a line; beyond them along the line of the two at that end, of one in proportion."""
    if not points:
        return 0.0
    if len(points) == 1:
        return float(getattr(points[0], name)) * rows / points[0].rows
    right = next((n for n, point in enumerate(points) if point.rows >= rows), len(points) - 1)
    low, high = points[max(right, 1) - 1], points[max(right, 1)]
    first, last = float(getattr(low, name)), float(getattr(high, name))
    return max(first + (last - first) * (rows - low.rows) / (high.rows - low.rows), 0.0)
