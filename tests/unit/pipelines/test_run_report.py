"""The tables that end a run hold what its summary holds."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console, RenderableType

from hetero.observe.summary import Baseline, Scores, Summary
from pipelines.report import report, scores_report, size

SUMMARY = Summary(
    name="movielens",
    run_folder="runs/demo",
    seed=7,
    placement="local Ray",
    steps=158,
    samples=161_792,
    samples_per_s=23_456.7,
    wall_s=61.2,
    auc=0.78134,
    logloss=0.5623,
    test_samples=20_000,
    time_to_first_step_s=9.3,
    wait_fraction=0.2,
    speed={
        "samples_per_s": 23_456.7,
        "single_tower_samples_per_s": 29_320.9,
        "towers": 1,
        "efficiency": 0.8,
        "rest": {"server": 0.2},
    },
    cpu_s={"tower/0": 9.0, "server/0": 0.6, "server/1": 0.4},
    seconds={"tower.step": 6.0, "wait.server": 2.0},
    waits={"tower/0": {"server": 2.0, "towers": 0.0}},
    rows={f"wide/{number}": number for number in range(1, 15)},
    peak_rss_bytes={"tower/0": 3 << 29},
    malformed=3,
    rejected_gradients={"rows": 5},
    warnings=("something to know",),
    baseline=Baseline(name="logistic_regression", auc=0.7511, logloss=0.59),
)


def text_of(shown: RenderableType) -> list[str]:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def test_a_report_says_what_the_run_reached() -> None:
    lines = text_of(report(SUMMARY))
    for line in (
        "movielens, 20,000 test rows",
        "this tower logistic regression",
        "AUC 0.7813 0.7511",
        "log loss 0.5623 0.5900",
        "ran local Ray",
        "rows trained 161,792 in 158 steps",
        "rows/s 23,457",
        "whole run 1 min 1 s",
        "first step done after 9 s",
        "rows in the tables 105",
        "peak memory tower/0 1.5 GiB",
        "rows left out as malformed 3",
        "gradients rejected rows 5",
        "tower.step 6.00 75% rows to loss and gradients",
        "wait.server 2.00 25% waiting for servers",
        "23,457 rows/s = 29,321 (one tower at work) x 1 tower x 0.80; the rest: waiting",
        "for server 20.0%",
        "CPU time while training: tower 90.0%, server 10.0%",
        "tower/0 waited for server 2.00 s",
        "wide/14 14",
        "2 more 3",
        "warning: something to know",
        "The run lies in runs/demo",
    ):
        assert line in lines, (line, lines)


def test_scores_that_do_not_exist_say_none_and_without_test_data_there_are_no_scores() -> None:
    bare = replace(SUMMARY, auc=None, baseline=None, rows={}, seconds={}, warnings=())
    lines = text_of(report(bare))
    assert "AUC none" in lines
    assert not any("logistic" in line or "where the" in line or "warning" in line for line in lines)
    assert not any("AUC" in line for line in text_of(report(replace(bare, test_samples=0, logloss=None))))


def test_an_evaluation_says_what_was_scored() -> None:
    lines = text_of(
        scores_report(
            Scores(auc=0.5, logloss=None, samples=2000, calibration=1.25, seconds=0.5, warnings=("one class",)),
            of="test data",
        )
    )
    for line in ("test data, 2,000 rows", "AUC 0.5000", "log loss none", "calibration 1.2500", "rows/s 4,000"):
        assert line in lines
    assert "warning: one class" in lines


def test_sizes() -> None:
    assert [size(n) for n in (0, 1023, 1536, 3 << 29, 5 << 40)] == ["0 B", "1023 B", "1.5 KiB", "1.5 GiB", "5.0 TiB"]


def test_what_a_plan_promised_stands_beside_what_was_reached() -> None:
    told = " ".join(text_of(report(replace(SUMMARY, predicted_samples_per_s=25_000.0))))
    assert "23,457; the plan predicted 25,000" in told
    assert "predicted" not in " ".join(text_of(report(SUMMARY)))
