"""What every benchmark prints: rows of figures, checks against targets, and one JSON object for machines."""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hetero.hardware.probe import library_versions, probe_machine

RESULTS = Path(__file__).parent / "results"
_NOT_RUN = "not run: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One target. value: what was measured, or "not run: " and why."""

    name: str
    value: float | str
    target: str
    holds: bool

    @property
    def ran(self) -> bool:
        return not str(self.value).startswith(_NOT_RUN)


@dataclass(slots=True)
class Report:
    """The outcome of one benchmark. rows: figures by name, one record a line of the table, all of the same names."""

    name: str
    rows: list[dict[str, object]] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    def add(self, **figures: object) -> None:
        self.rows.append(figures)

    def check(self, name: str, value: float, *, at_least: float | None = None, at_most: float | None = None) -> None:
        """Hold a figure against its target."""
        target = f">= {at_least:g}" if at_least is not None else f"<= {at_most:g}"
        holds = value >= at_least if at_least is not None else at_most is not None and value <= at_most
        self.checks.append(Check(name=name, value=round(value, 4), target=target, holds=bool(holds)))

    def not_run(self, name: str, *, target: str, why: str) -> None:
        """List a check that this run leaves out."""
        self.checks.append(Check(name=name, value=_NOT_RUN + why, target=target, holds=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Two sides measured in turn. Medians of seconds; ratio: base / ours pair by pair, its median and 10% and 90%."""

    base_s: float
    ours_s: float
    ratio: float
    ratio_low: float
    ratio_high: float

    @property
    def spread(self) -> str:
        return f"{self.ratio_low:.2f} to {self.ratio_high:.2f}"


def arguments(description: str) -> argparse.Namespace:
    """--quick, --json, --save of the command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    return parser.parse_args()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--quick, --json, --save."""
    parser.add_argument("--quick", action="store_true", help="smaller sizes, at most 10 minutes")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--save", action="store_true", help="keep the result as a dated file in benchmarks/results")


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of this thread: one core's work, whatever else the machine does."""
    started = time.thread_time()
    work()
    return time.thread_time() - started


def measure_pairs(base: Callable[[int], float], ours: Callable[[int], float], *, count: int) -> Pairs:
    """Call both `count` times, each first in every other pair. They take the number of the pair and give seconds."""
    base(0), ours(0)
    times = []
    for number in range(1, count + 1):
        first = base(number) if number % 2 else None
        second = ours(number)
        times.append((base(number) if first is None else first, second))
    ratios = sorted(base_s / our_s for base_s, our_s in times)
    edge = count // 10
    return Pairs(
        base_s=statistics.median(base_s for base_s, _ in times),
        ours_s=statistics.median(our_s for _, our_s in times),
        ratio=statistics.median(ratios),
        ratio_low=ratios[edge],
        ratio_high=ratios[-1 - edge],
    )


def finish(report: Report, options: argparse.Namespace) -> int:
    """Print the report and, with --save, keep it.

    Returns the exit status: 1 when a check that was run fails, or when a full run leaves one out.
    """
    text = markdown(report)
    print(text, file=sys.stderr if options.json else sys.stdout)
    if options.json:
        record = {"name": report.name, "rows": report.rows, "checks": [asdict(check) for check in report.checks]}
        print(json.dumps(record))
    if options.save:
        RESULTS.mkdir(exist_ok=True)
        name = f"{datetime.date.today().isoformat()}-{report.name}{'-quick' if options.quick else ''}.md"
        (RESULTS / name).write_text(text + "\n", encoding="utf-8")
    failed = [check for check in report.checks if not check.holds and (check.ran or not options.quick)]
    return 1 if failed else 0


def markdown(report: Report) -> str:
    """The report as Markdown, with hardware and versions."""
    machine = probe_machine()
    lines = [
        f"# {report.name}, {datetime.date.today().isoformat()}",
        "",
        f"{machine.cpu_model}, {machine.cores:g} cores, {machine.memory_bytes / 2**30:.0f} GiB; "
        + ", ".join(f"{name} {version}" for name, version in library_versions().items()),
        "",
    ]
    if report.rows:
        lines += [*_table(list(report.rows[0]), [list(row.values()) for row in report.rows]), ""]
    checks = [[check.name, check.value, check.target, "yes" if check.holds else "NO"] for check in report.checks]
    return "\n".join([*lines, *_table(["check", "value", "target", "holds"], checks)])


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    written = [[f"{cell:,.2f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in written)]
