"""What deep models learn, as a part of `benchmarks.mesh`: tiny shakespeare in one process and on a mesh of eight ranks,
and masked characters of the Tang poems. Needs the shared data; parts without it are listed as not run."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.report import Report
from hetero.errors import DataError
from pipelines.build import Placement
from pipelines.datasets import locate
from pipelines.deep_schema import load_deep_job
from pipelines.deep_summary import DeepSummary
from pipelines.progress import Silent
from pipelines.text import pack_text
from pipelines.text_codec import TokenizerKind
from pipelines.train_deep import fit_deep

EXAMPLES = Path(__file__).parents[1] / "examples"
MESH = ("mesh.pp=2", "mesh.shard=2", "mesh.tp=2", "mesh.micro_batches=2")
_SHAKESPEARE = "shakespeare: validation loss after 2,000 steps"
_CURVE = "shakespeare on 2x2x2: most relative distance from one process's losses"
_TANG = "Tang poems, masked: validation loss after / before learning the characters' frequencies"


def check_learning(report: Report, *, quick: bool) -> None:
    """Tiny shakespeare to 1.90 nats; the same job on eight ranks along its losses; the Tang poems."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _shakespeare(report, folder, quick=quick)
        _tang(report, folder, quick=quick)


def _shakespeare(report: Report, folder: Path, *, quick: bool) -> None:
    try:
        text = locate("tinyshakespeare") / "input.txt"
    except DataError as error:
        report.not_run(_SHAKESPEARE, target="<= 1.9", why=str(error))
        report.not_run(_CURVE, target="<= 0.001", why=str(error))
        return
    pack_text([str(text)], folder=folder / "shakespeare", tokenizer=TokenizerKind.CHAR)
    followed = 20 if quick else 200
    alone = _trained("shakespeare", folder, "alone", "run.threads=2", in_process=True)
    meshed = _trained("shakespeare", folder, "meshed", *MESH, f"train.stop_at={followed}", "text.validation=null")
    losses = [np.load(Path(summary.run_folder) / "losses.npy")[:followed] for summary in (alone, meshed)]
    report.check(_SHAKESPEARE, alone.validation_loss or np.inf, at_most=1.90)
    report.check(_CURVE, float(np.abs(losses[1] / losses[0] - 1).max()), at_most=1e-3)
    for what, summary in (("one process", alone), (f"2x2x2, {followed} steps", meshed)):
        _add(report, f"shakespeare, {what}", summary)


def _tang(report: Report, folder: Path, *, quick: bool) -> None:
    try:
        text = locate("chinese_poetry_tang") / "tang.txt.gz"
    except DataError as error:
        report.not_run(_TANG, target="<= 0.9", why=str(error))
        return
    pack_text([str(text)], folder=folder / "tang", tokenizer=TokenizerKind.CHAR, vocabulary=4000)
    steps = ("train.steps=300", "train.evaluate_every=150") if quick else ()
    summary = _trained("tang", folder, "tang-run", *steps, in_process=True)
    evaluations = [one["loss"] for one in summary.evaluations]
    report.check(_TANG, evaluations[-1] / evaluations[0], at_most=0.99 if quick else 0.9)
    _add(report, "Tang poems, masked spans", summary)


def _trained(job: str, folder: Path, run: str, *overrides: str, in_process: bool = False) -> DeepSummary:
    texts = [f"text.{part}={folder / job / part}" for part in ("train", "validation")]
    loaded = load_deep_job(EXAMPLES / f"{job}.yaml", overrides=[*texts, *overrides])
    return fit_deep(loaded, run_folder=folder / run, progress=Silent(), placement=Placement(in_process=in_process))


def _add(report: Report, what: str, summary: DeepSummary) -> None:
    step_s = 0.0 if not summary.tokens_per_s else summary.tokens / summary.steps / summary.tokens_per_s
    report.add(
        what=f"{what}: {summary.steps} steps, validation {summary.validation_loss or 0.0:.3f}",
        base_s=0.0,
        ours_s=step_s,
        ratio=0.0,
        spread="",
        tokens_per_s=summary.tokens_per_s,
        mfu=summary.mfu,
    )
