"""The Grafana dashboard asks for metrics that exist, all of them, in the form Grafana and Ray's provisioning load."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hetero.observe.metrics import METRICS, MetricKind
from pipelines.grafana import RAYS_OWN, UID, dashboard
from tests.support.cli import hetero_here

PANELS = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def test_every_query_names_one_metric_of_the_table_and_every_metric_has_a_panel() -> None:
    known = {metric.exported: metric for metric in METRICS}
    rays_own = [panel.metric for panel in RAYS_OWN]
    asked = []
    for panel in PANELS:
        (target,) = panel["targets"]
        (name,) = set(re.findall(r"\bray_\w+", target["expr"]))
        asked.append(name)
        if name in rays_own:
            continue
        metric = known[name]
        assert ("rate(" in target["expr"]) == (metric.kind is MetricKind.COUNTER), target["expr"]
        by = re.search(r"by \(([^)]*)\)", target["expr"])
        assert by is not None
        assert set(by.group(1).split(", ")) == set(metric.labels)
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) == set(metric.labels)
        assert target["expr"].count("(") == target["expr"].count(")")
    assert sorted(asked) == sorted([*known, *rays_own])


def test_panels_have_places_and_ids_of_their_own() -> None:
    panels = dashboard()["panels"]
    numbers = [panel["id"] for panel in panels]
    assert len(set(numbers)) == len(numbers)
    assert {24, 41} <= set(numbers)  # Ray's Overview asks for these
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        taken |= cells


def test_variables_are_defined() -> None:
    record = dashboard()
    names = {variable["name"] for variable in record["templating"]["list"]}
    built_in = {"__rate_interval", "__all"}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(record))) <= names | built_in


@pytest.mark.parametrize("as_json", [True, False])
def test_the_command_writes_it(tmp_path: Path, as_json: bool) -> None:
    file = tmp_path / "some" / "hetero.json"
    ran = hetero_here("dashboard", "grafana", "--out", str(file), *(["--json"] if as_json else []))
    assert ran.code == 0, ran.err
    assert json.loads(file.read_text()) == dashboard()
    assert (ran.json["uid"] if as_json else ran.out.split()) is not None
    assert UID in ran.out


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    ran = hetero_here("dashboard", "grafana", "--out", str(tmp_path), "--json")
    assert ran.code == 2
    assert "is a folder" in ran.json["error"]["message"]
