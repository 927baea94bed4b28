"""What text and clicks learn together: the joint tower, its wide half and its text half, on one split, over seeds.

    python -m benchmarks.joint_learning [--only clothing] [--models joint] [--seeds 7,8] [--quick] [--json] [--save]

The data are made as the examples say (`examples/{clothing,movielens_titles,frappe_apps}.yaml`), from the folder this is
started in; a set that is not there is listed as not run. Every run is kept in `runs/joint_learning`, and one of the
same job is not trained again, so that the table may be made in pieces. `wide` is Wide & Deep on the same ids, with the
head's layers; `text` is the joint tower without ids; `text_pretrained` and `joint_pretrained` are the same, their text
half begun with a language model (`examples/clothing_text.yaml`). Settings in the examples were chosen on a fifth of the
training data, never on the test data. --quick: one seed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import Report, add_arguments, finish
from hetero.observe.run_folder import RESOLVED_JOB, SUMMARY, RunFolder
from hetero.observe.summary import Summary
from pipelines.job import Job, complete, dump_resolved
from pipelines.job_yaml import read_yaml

EXAMPLES = Path(__file__).parents[1] / "examples"
RUNS = Path("runs/joint_learning")
PRETRAINED = Path("runs/clothing_text")
SETS: Mapping[str, str] = {
    "clothing": "clothing.yaml",
    "movielens": "movielens_titles.yaml",
    "frappe": "frappe_apps.yaml",
}
MODELS = ("wide", "text", "joint", "text_pretrained", "joint_pretrained")
SEEDS = (7, 8, 9)
_OF_BOTH_HALVES = ("history", "fusion", "half_loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """AUCs and log losses of one model on one data set, a seed each."""

    aucs: list[float]
    loglosses: list[float]
    ndcgs: list[float]
    seconds: float

    @property
    def spread(self) -> float:
        """Between the best seed and the worst."""
        return max(self.aucs) - min(self.aucs)


def main() -> int:
    options = _options()
    report = Report("joint_learning")
    seeds = SEEDS[:1] if options.quick else tuple(int(seed) for seed in options.seeds.split(","))
    for name in options.only.split(","):
        raw = read_yaml(EXAMPLES / SETS[name])[0]
        if not Path(raw["data"]["train"]).is_file():
            report.not_run(f"{name}: joint - best half", target="> spread", why=f"{raw['data']['train']} is not there")
            continue
        found = {model: _scored(name, raw, model, seeds) for model in options.models.split(",") if _there(name, model)}
        for model, scored in found.items():
            _add_row(report, name, model, scored)
        if name == "clothing":
            _check(report, found)
    return finish(report, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--only", default=",".join(SETS), help="data sets, with commas between")
    parser.add_argument("--models", default=",".join(MODELS), help="models, with commas between")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="seeds, with commas between")
    return parser.parse_args()


def _there(name: str, model: str) -> bool:
    """Only the clothing texts have a language model to begin with, and only where it was trained."""
    return not model.endswith("_pretrained") or (name == "clothing" and PRETRAINED.is_dir())


def _scored(name: str, raw: dict[str, Any], model: str, seeds: tuple[int, ...]) -> Scored:
    summaries = [_run(job_of(raw, model, seed=seed, folder=RUNS / f"{name}-{model}-{seed}")) for seed in seeds]
    return Scored(
        aucs=[summary.auc or 0.0 for summary in summaries],
        loglosses=[summary.logloss or 0.0 for summary in summaries],
        ndcgs=[summary.ndcg or 0.0 for summary in summaries],
        seconds=statistics.mean(summary.wall_s for summary in summaries),
    )


def job_of(raw: dict[str, Any], model: str, *, seed: int, folder: Path) -> Job:
    """The example's job with one of its halves left out, or its text half begun with a language model."""
    features, tower = dict(raw["features"]), dict(raw["tower"])
    tables = raw["tables"]
    if model == "wide":
        kept = {name: value for name, value in tower["args"].items() if name in ("hidden", "dropout")}
        tower = {"name": "wide_and_deep", "args": kept, "optimizer": tower["optimizer"]}
        features.pop("text")
    if model.startswith("text"):
        tower["args"] = {name: value for name, value in tower["args"].items() if name not in _OF_BOTH_HALVES}
        features, tables = {"text": features["text"]}, []
    if model.endswith("_pretrained"):
        tower["parts"] = [{**part, "from": str(PRETRAINED)} for part in tower["parts"]]
    changed = {"features": features, "tower": tower, "tables": tables, "seed": seed, "run": {"folder": str(folder)}}
    return Job(**{**raw, **changed})


def _run(job: Job) -> Summary:
    """The run's summary; trained when no run of this job is there."""
    folder = Path(job.run.folder)
    if not _is_done(folder, job):
        print(f"training {folder.name}", file=sys.stderr, flush=True)
        job.fit(in_process=True)
    return Summary.read(RunFolder.open(folder).summary)


def _is_done(folder: Path, job: Job) -> bool:
    """Whether a run of this very job came to its end there."""
    resolved = folder / RESOLVED_JOB
    return (folder / SUMMARY).is_file() and resolved.read_text(encoding="utf-8") == dump_resolved(complete(job))


def _add_row(report: Report, name: str, model: str, scored: Scored) -> None:
    report.add(
        data=name,
        model=model,
        seeds=len(scored.aucs),
        auc=f"{statistics.mean(scored.aucs):.4f}",
        lowest=f"{min(scored.aucs):.4f}",
        highest=f"{max(scored.aucs):.4f}",
        logloss=f"{statistics.mean(scored.loglosses):.4f}",
        ndcg_10=f"{statistics.mean(scored.ndcgs):.4f}",
        seconds=f"{scored.seconds:.0f}",
    )


def _check(report: Report, found: Mapping[str, Scored]) -> None:
    """The joint model is ahead of both halves by more than seeds differ, on the clothing reviews; begun alike."""
    for begun in ("", "_pretrained"):
        what = f"clothing{begun.replace('_', ', ')}: joint - best half, AUC, over the spread of seeds"
        models = ("wide", f"text{begun}", f"joint{begun}")
        if not set(models) <= found.keys():
            report.not_run(what, target=">= 1", why="--models, or no language model in runs/clothing_text")
            continue
        wide, text, joint = (found[model] for model in models)
        margin = statistics.mean(joint.aucs) - max(statistics.mean(half.aucs) for half in (wide, text))
        spread = max(scored.spread for scored in (wide, text, joint))
        report.check(what, margin / max(spread, 1e-9), at_least=1.0)


if __name__ == "__main__":
    raise SystemExit(main())
