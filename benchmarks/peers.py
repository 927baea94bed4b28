"""This product through Ray actors beside other trainers, on the same rows and towers, on the same machine.

    python -m benchmarks.peers [--quick] [--json] [--save] [--peers FOLDER] [--venvs FOLDER] [--data FOLDER]

--peers holds the scripts that run the others; --venvs one virtual environment each (torch, torchrec, paddle, deepctr;
their README says how to make them; torch may be missing: this one has it); --data is made when it is not there.
First every setting of a system runs once and the fastest is kept; then this product and each peer run in turn, every
peer right before or after a run of ours, 5 rounds; medians. --quick: one setting of each, fewer rows, 2 rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peer_runs import Load, Ran, Setting, make_data
from benchmarks.report import Report, add_arguments, finish

ROOT = Path(__file__).parents[1]
ROUNDS, QUICK_ROUNDS = 5, 2
ROWS, QUICK_ROWS = 819_200, 245_760
LINEAR_ROWS, QUICK_LINEAR_ROWS = 1_802_240, 819_200
"""The linear tower is through a chunk in half a second: so short a run would time the filling of tables alone."""
OTHER_BATCHES_ROWS = 409_600
TARGETS = {"torchrec": 1.5, "torch": 1.0, "paddle": 3.0, "deepctr": 8.0}
AUTO_TARGETS = {"torchrec": 2.5, "torch": 2.0, "paddle": 6.0, "deepctr": 8.0}
SCRIPTS = {
    "torch": "bench_torch.py",
    "torchrec": "bench_torchrec.py",
    "paddle": "bench_paddle_ps.py",
    "deepctr": "bench_deepctr.py",
}


@dataclass(frozen=True, slots=True)
class Side:
    """A system at its best setting, and what it reached."""

    setting: Setting
    runs: list[Ran]

    @property
    def median(self) -> float:
        return statistics.median(run.samples_per_s for run in self.runs)

    @property
    def spread(self) -> str:
        rates = sorted(run.samples_per_s for run in self.runs)
        return f"{rates[0]:,.0f} to {rates[-1]:,.0f}"


def main() -> int:
    options = _options()
    report = Report("peers")
    peers, data = options.peers, options.data
    if not (peers / "gen_data.py").exists():
        report.not_run("all", target="", why=f"{peers} holds no scripts of peers; give --peers")
        return finish(report, options)
    make_data(peers, data)
    pythons = _pythons(options.venvs)
    rows = QUICK_ROWS if options.quick else ROWS
    count = QUICK_ROUNDS if options.quick else ROUNDS
    linear = QUICK_LINEAR_ROWS if options.quick else LINEAR_ROWS
    loads = [Load(tower="dlrm", batch=4096, rows=rows), Load(tower="lr", batch=4096, rows=linear)]
    if not options.quick:
        loads += [Load(tower="dlrm", batch=batch, rows=OTHER_BATCHES_ROWS) for batch in (1024, 16384)]
    for number, load in enumerate(loads):
        _compare(report, load, pythons, count=count, options=options, is_main=number == 0)
    for system in TARGETS:
        if system not in pythons:
            report.not_run(f"{system}", target=f">= {TARGETS[system]:g}", why="no virtual environment of it is there")
    return finish(report, options)


def _compare(
    report: Report, load: Load, pythons: dict[str, str], *, count: int, options: argparse.Namespace, is_main: bool
) -> None:
    wanted = [name for name in SCRIPTS if name in pythons and (is_main or name in ("torch", "torchrec"))]
    best = {name: _best(name, pythons[name], load, options) for name in ("hetero", *wanted)}
    sides = {name: Side(setting, []) for name, setting in best.items()}
    ratios: dict[str, list[float]] = {name: [] for name in wanted}
    for number in range(count):
        for order in _turns([name for name in wanted if name in sides], backwards=number % 2 == 1):
            latest = {name: ran for name in order if (ran := _ran(report, name, best[name], load, options))}
            for name, ran in latest.items():
                sides[name].runs.append(ran)
                if name != "hetero":
                    ratios[name].append(latest["hetero"].samples_per_s / ran.samples_per_s)
            for name in set(order) - set(latest):  # it failed, which the report says
                sides.pop(name), ratios.pop(name)
    for name, side in sides.items():
        report.add(
            system=name,
            tower=load.tower,
            batch=load.batch,
            setting=side.setting.label,
            samples_per_s=side.median,
            spread=side.spread,
            auc=f"{statistics.median(run.auc for run in side.runs):.4f}",
            ours_times_it=statistics.median(ratios[name]) if name in ratios else "",
        )
    _checks(report, load, sides, ratios, is_main=is_main)


def _turns(peers: list[str], *, backwards: bool) -> Iterator[list[str]]:
    """Every peer beside one of our runs, which two peers share: first before and after it, then the other way."""
    for start in range(0, len(peers), 2):
        order = [peers[start], "hetero", *peers[start + 1 : start + 2]]
        yield order[::-1] if backwards else order


def _ran(report: Report, name: str, setting: Setting, load: Load, options: argparse.Namespace) -> Ran | None:
    """One run. A peer that fails is told in the report and left out from then on."""
    try:
        return setting.run(load, peers=options.peers, data=options.data)
    except RuntimeError as error:
        if name == "hetero":
            raise
        report.not_run(f"{name}, {load.tower}, batch {load.batch}", target="ends", why=str(error))
        return None


def _checks(
    report: Report,
    load: Load,
    sides: dict[str, Side],
    ratios: dict[str, list[float]],
    *,
    is_main: bool,
) -> None:
    if load.tower == "lr" and ratios:
        report.check("linear tower: times the best peer", min(map(statistics.median, ratios.values())), at_least=2.0)
    if not is_main:
        return
    auto_is_fp32 = all(run.summary["precision"]["taken"] == "fp32" for run in sides["hetero"].runs)
    for name, pairs in ratios.items():
        target, auto = TARGETS[name], AUTO_TARGETS[name]
        if auto_is_fp32:
            report.check(f"times {name}, fp32", statistics.median(pairs), at_least=target)
            report.not_run(f"times {name}, auto", target=f">= {auto:g}", why="auto is fp32: no bf16 in this hardware")
        else:
            report.check(f"times {name}, auto", statistics.median(pairs), at_least=auto)
    aucs = {name: statistics.median(run.auc for run in side.runs) for name, side in sides.items()}
    best_peer = max(auc for name, auc in aucs.items() if name not in ("hetero", "deepctr"))  # it has fewer rows
    report.check("AUC below the best peer's", best_peer - aucs["hetero"], at_most=0.001)
    own = sides["hetero"].runs
    report.check("wait fraction", statistics.median(float(run.summary["wait_fraction"]) for run in own), at_most=0.05)
    report.check("CPU share of readers, sequencer, servers", statistics.median(map(_cpu_share, own)), at_most=0.15)


def _cpu_share(run: Ran) -> float:
    seconds: dict[str, float] = run.summary["cpu_s"]
    return sum(s for role, s in seconds.items() if not role.startswith("tower/")) / sum(seconds.values())


def _best(system: str, python: str, load: Load, options: argparse.Namespace) -> Setting:
    """The fastest of a system's settings on this load, each run once."""
    settings = list(_settings(system, python, quick=options.quick))
    if len(settings) == 1:
        return settings[0]
    short = Load(tower=load.tower, batch=load.batch, rows=max(8 * load.batch, load.rows // 2))
    reached = [setting.reached(short, peers=options.peers, data=options.data) for setting in settings]
    return settings[max(range(len(settings)), key=reached.__getitem__)]


def _settings(system: str, python: str, *, quick: bool) -> Iterator[Setting]:
    if system == "hetero":
        yield Setting(system=system, label="1 tower, 2 threads", python=python, threads=2)
        if not quick:
            yield Setting(system=system, label="1 tower, 1 thread", python=python, threads=1)
            yield Setting(system=system, label="2 towers, 1 thread each", python=python, towers=2)
        return
    script = SCRIPTS[system]
    waits = ("PASSIVE",) if quick or system in ("paddle", "deepctr") else ("PASSIVE", "ACTIVE")
    for threads in (2,) if quick else (1, 2):
        for waiting in waits if threads == 2 else ("PASSIVE",):
            more: tuple[str, ...] = {
                "paddle": ("--mode", "async", "--workers", str(3 - threads)),
                "deepctr": ("--loop", "own", "--model", "DeepFM"),
            }.get(system, ())
            words = (script, "--threads", str(threads), *more)
            label = f"{threads} threads, waiting {waiting.lower()}" if threads > 1 else "1 thread"
            yield Setting(system=system, label=label, python=python, words=words, waiting=waiting)
    if system == "torchrec" and not quick:
        two = (script, "--mode", "dmp", "--world", "2", "--threads", "1")
        yield Setting(system=system, label="2 processes, 1 thread each", python=python, words=two)


def _pythons(venvs: Path) -> dict[str, str]:
    """The interpreter of every system that is there; plain torch runs in this one."""
    found = {"hetero": sys.executable, "torch": sys.executable}
    for system in SCRIPTS:
        python = venvs / system / "bin" / "python"
        if python.exists():
            found[system] = str(python)
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--peers", type=Path, default=ROOT.parent / "shared" / "peers")
    parser.add_argument("--venvs", type=Path, default=ROOT / ".peers")
    parser.add_argument("--data", type=Path, default=ROOT / "data" / "peers")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
