"""The table of metrics, what docs and dashboards say of it, and how totals become rates."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.observe.metrics import BYTES, METRICS, ROLE_LABELS, STEP, MetricKind, Pulse, Sample, Trend

DOCS = Path(__file__).parents[3] / "docs" / "dashboard.md"


def test_names_are_unique_and_say_their_kind() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"hetero_[a-z_]+", metric.name)
        assert (metric.kind is MetricKind.COUNTER) == metric.name.endswith("_total"), metric.name
        assert metric.label not in ROLE_LABELS
        assert metric.roles


def test_the_docs_list_exactly_these_metrics() -> None:
    lines = re.findall(
        r"^\| `(ray_hetero_\w+)` \| (\w+) \| ([^|]+) \| ([^|]*) \| ([^|]+) \| ([^|]+) \|$", DOCS.read_text(), re.M
    )
    told = [tuple(cell.strip() for cell in line) for line in lines]
    assert told == [
        (
            metric.exported,
            metric.kind.value,
            metric.unit,
            f"`{metric.label}`" if metric.label else "",
            ", ".join(metric.roles),
            metric.meaning,
        )
        for metric in METRICS
    ]


def test_a_pulse_is_a_line_with_labels_inside() -> None:
    pulse = Pulse(
        role="tower/0", t=1.0, samples=(Sample(STEP, 7), Sample(BYTES, 10, "pulled"), Sample(BYTES, 2, "pushed"))
    )
    assert pulse.to_fields() == {"hetero_step": 7, "hetero_bytes_total": {"pulled": 10, "pushed": 2}}


@given(st.lists(st.tuples(st.floats(0.1, 9), st.dictionaries(st.sampled_from("ab"), st.integers(0, 99))), min_size=1))
def test_growth_is_the_difference_of_totals(steps: list[tuple[float, dict[str, int]]]) -> None:
    trend, t, totals = Trend(), 0.0, {"a": 0.0, "b": 0.0}
    assert trend.look(t, totals) is None
    for seconds, more in steps:
        t += seconds
        totals = {name: total + more.get(name, 0) for name, total in totals.items()}
        growth = trend.look(t, totals)
        assert growth is not None
        assert growth.rate("a") == pytest.approx(more.get("a", 0) / growth.seconds)
        share, whole = growth.share("a", of="ab"), sum(more.values())
        assert share is None if whole == 0 else share == pytest.approx(more.get("a", 0) / whole)
