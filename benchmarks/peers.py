"""This product through Ray actors beside other trainers, on the same rows and towers, on the same machine.

    python -m benchmarks.peers [--quick] [--json] [--save] [--peers FOLDER] [--venvs FOLDER] [--data FOLDER]

--peers holds the scripts that run the others; --venvs one virtual environment each (torch, torchrec, paddle, deepctr;
their README says how to make them; torch may be missing: this one has it); --data is made when it is not there.
First every setting of a system runs once and the fastest is kept; then this product and each peer run in turn, every
peer right before or after a run of ours, 5 rounds; medians. --quick: one setting of each, fewer rows, 2 rounds.

Where the CPU multiplies bf16 matrices in hardware, this product runs in fp32 and with precision `auto`, and torch and
TorchRec under bf16 autocast besides.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.peer_runs import Load, Ran, Setting, make_data
from benchmarks.report import Report, add_arguments, finish
from hetero.hardware.precision import fast_bf16_here
from hetero.records import Precision

ROOT = Path(__file__).parents[1]
ROUNDS, QUICK_ROUNDS = 5, 2
ROWS, QUICK_ROWS = 819_200, 245_760
LINEAR_ROWS, QUICK_LINEAR_ROWS = 1_802_240, 819_200
"""The linear tower is through a chunk in half a second: so short a run would time the filling of tables alone."""
OTHER_BATCHES_ROWS = 409_600
TARGETS = {"torchrec": 1.5, "torch": 1.0, "paddle": 3.0, "deepctr": 8.0}
AUTO_TARGETS = {
    "torchrec": 2.5,
    "torch": 2.0,
    "paddle": 6.0,
    "deepctr": 8.0,
    "torchrec bf16": 1.3,
    "torch bf16": 1.3,
}
OURS = {"hetero": Precision.FP32, "hetero auto": Precision.AUTO}
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
    ours = list(OURS) if fast_bf16_here().has else ["hetero"]
    loads = [Load(tower="dlrm", batch=4096, rows=rows), Load(tower="lr", batch=4096, rows=linear)]
    if not options.quick:
        loads += [Load(tower="dlrm", batch=batch, rows=OTHER_BATCHES_ROWS) for batch in (1024, 16384)]
    for number, load in enumerate(loads):
        own = ours if load.tower == "dlrm" else ["hetero"]
        _compare(report, load, pythons, own, count=count, options=options, is_main=number == 0)
    if ours == ["hetero"]:
        for name, target in AUTO_TARGETS.items():
            report.not_run(f"times {name}, auto", target=f">= {target:g}", why=f"auto is fp32: {fast_bf16_here().why}")
    for system in TARGETS:
        if system not in pythons:
            report.not_run(f"{system}", target=f">= {TARGETS[system]:g}", why="no virtual environment of it is there")
    return finish(report, options)


def _compare(
    report: Report,
    load: Load,
    pythons: dict[str, str],
    ours: Sequence[str],
    *,
    count: int,
    options: argparse.Namespace,
    is_main: bool,
) -> None:
    wanted = [name for name in SCRIPTS if name in pythons and (is_main or name in ("torch", "torchrec"))]
    if len(ours) > 1:
        wanted += [f"{name} bf16" for name in ("torch", "torchrec") if name in wanted]
    best = {name: _best(name, pythons, load, options) for name in (*ours, *wanted)}
    sides = {name: Side(setting, []) for name, setting in best.items()}
    ratios: dict[tuple[str, str], list[float]] = {(own, name): [] for own in ours for name in wanted}
    for number in range(count):
        for order in _turns([name for name in wanted if name in sides], ours, backwards=number % 2 == 1):
            latest = {name: ran for name in order if (ran := _ran(report, name, best[name], load, options))}
            for name, ran in latest.items():
                sides[name].runs.append(ran)
                for own in ours if name not in ours else ():
                    ratios[own, name].append(latest[own].samples_per_s / ran.samples_per_s)
            for name in set(order) - set(latest):  # it failed, which the report says
                sides.pop(name)
                ratios = {pair: values for pair, values in ratios.items() if pair[1] != name}
    medians = {pair: statistics.median(values) for pair, values in ratios.items()}
    for name, side in sides.items():
        report.add(
            system=name,
            tower=load.tower,
            batch=load.batch,
            setting=side.setting.label,
            samples_per_s=side.median,
            spread=side.spread,
            auc=f"{statistics.median(run.auc for run in side.runs):.4f}",
            **{f"{own} times it": medians.get((own, name), "") for own in OURS},
        )
    if load.tower == "lr" and medians:
        report.check("linear tower: times the best peer", min(medians.values()), at_least=2.0)
    if is_main:
        _checks(report, sides, medians, ours)


def _turns(peers: list[str], ours: Sequence[str], *, backwards: bool) -> Iterator[list[str]]:
    """Every peer beside our runs, which two peers share: first before and after them, then the other way."""
    for start in range(0, len(peers), 2):
        order = [peers[start], *ours, *peers[start + 1 : start + 2]]
        yield order[::-1] if backwards else order


def _ran(report: Report, name: str, setting: Setting, load: Load, options: argparse.Namespace) -> Ran | None:
    """One run. A peer that fails is told in the report and left out from then on."""
    try:
        return setting.run(load, peers=options.peers, data=options.data)
    except RuntimeError as error:
        if name in OURS:
            raise
        report.not_run(f"{name}, {load.tower}, batch {load.batch}", target="ends", why=str(error))
        return None


def _checks(report: Report, sides: dict[str, Side], medians: dict[tuple[str, str], float], ours: Sequence[str]) -> None:
    """The targets of the main load. Those of waits and of CPU time are held by the product's runs in fp32; what runs
    in bf16 come to is told beside them."""
    for (own, name), ratio in medians.items():
        target = (TARGETS if own == "hetero" else AUTO_TARGETS).get(name)
        if target is not None:
            report.check(f"times {name}, {'fp32' if own == 'hetero' else 'auto'}", ratio, at_least=target)
    aucs = {name: statistics.median(run.auc for run in side.runs) for name, side in sides.items()}
    best_peer = max(auc for name, auc in aucs.items() if name not in (*ours, "deepctr"))  # it has fewer rows
    for own in ours:
        runs, said = sides[own].runs, "" if own == "hetero" else ", auto"
        report.check(f"AUC below the best peer's{said}", best_peer - aucs[own], at_most=0.001)
        waits = [float(run.summary["wait_fraction"]) for run in runs]
        report.check(f"wait fraction{said}", statistics.median(waits), at_most=0.05)
        shares = statistics.median(map(_cpu_share, runs))
        report.check(f"CPU share of readers, sequencer, servers{said}", shares, at_most=0.15)


def _cpu_share(run: Ran) -> float:
    seconds: dict[str, float] = run.summary["cpu_s"]
    return sum(s for role, s in seconds.items() if not role.startswith("tower/")) / sum(seconds.values())


def _best(name: str, pythons: dict[str, str], load: Load, options: argparse.Namespace) -> Setting:
    """The fastest of a system's settings on this load, each run once."""
    settings = list(_settings(name, pythons, quick=options.quick))
    if len(settings) == 1:
        return settings[0]
    short = Load(tower=load.tower, batch=load.batch, rows=max(8 * load.batch, load.rows // 2))
    reached = [setting.reached(short, peers=options.peers, data=options.data) for setting in settings]
    return settings[max(range(len(settings)), key=reached.__getitem__)]


def _settings(name: str, pythons: dict[str, str], *, quick: bool) -> Iterator[Setting]:
    if name in OURS:
        own = Setting(system=name, label="1 tower, 2 threads", python=sys.executable, threads=2, precision=OURS[name])
        yield own
        if not quick:
            yield replace(own, label="1 tower, 1 thread", threads=1)
            yield replace(own, label="2 towers, 1 thread each", threads=1, towers=2)
        return
    system, precision = name.split()[0], Precision.BF16 if name.endswith(" bf16") else Precision.FP32
    script, python = SCRIPTS[system], pythons[system]
    waits = ("PASSIVE",) if quick or system in ("paddle", "deepctr") else ("PASSIVE", "ACTIVE")
    for threads in (2,) if quick else (1, 2):
        for waiting in waits if threads == 2 else ("PASSIVE",):
            more: tuple[str, ...] = {
                "paddle": ("--mode", "async", "--workers", str(3 - threads)),
                "deepctr": ("--loop", "own", "--model", "DeepFM"),
            }.get(system, ())
            words = (script, "--threads", str(threads), *more)
            label = f"{threads} threads, waiting {waiting.lower()}" if threads > 1 else "1 thread"
            yield Setting(system=system, label=label, python=python, words=words, waiting=waiting, precision=precision)
    if system == "torchrec" and not quick:
        two = (script, "--mode", "dmp", "--world", "2", "--threads", "1")
        yield Setting(system=system, label="2 processes, 1 thread each", python=python, words=two, precision=precision)


def _pythons(venvs: Path) -> dict[str, str]:
    """The interpreter of every system that is there; plain torch runs in this one."""
    found = {"torch": sys.executable}
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
