"""The Grafana dashboard of runs that are alive, made from the table of metrics, so that the two cannot disagree."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from hetero.observe.metrics import METRICS, Metric, MetricKind, Section
from hetero.observe.run_folder import write_whole

UID = "heteroDashboard"


@dataclass(frozen=True, slots=True, kw_only=True)
class RaysPanel:
    """A panel of a metric of Ray itself. number: its id, where Ray's own pages ask for one."""

    metric: str
    title: str
    query: str
    legend: str
    unit: str
    number: int | None = None


RAYS_OWN = (
    RaysPanel(
        metric="ray_node_cpu_utilization",
        title="CPU of each node",
        query="avg by (instance) (ray_node_cpu_utilization)",
        legend="{{instance}}",
        unit="percent",
        number=24,  # "Cluster utilization" of the page Overview
    ),
    RaysPanel(
        metric="ray_node_mem_total",
        title="nodes",
        query="count(ray_node_mem_total)",
        legend="nodes",
        unit="short",
        number=41,  # "Node count" there
    ),
    RaysPanel(
        metric="ray_node_mem_used",
        title="memory used on each node",
        query="sum by (instance) (ray_node_mem_used)",
        legend="{{instance}}",
        unit="bytes",
    ),
    RaysPanel(
        metric="ray_object_store_memory",
        title="object store, by where its objects are",
        query="sum by (instance, Location) (ray_object_store_memory)",
        legend="{{instance}} {{Location}}",
        unit="bytes",
    ),
)
"""What a node does beside its roles."""
_UNITS = {"s": "s", "bytes": "bytes", "1": "percentunit"}
_FILTER = 'run=~"$run"'
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it, and as Ray's Grafana provisioning loads it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for section in Section:
        metrics = [metric for metric in METRICS if metric.section is section]
        y = _add_row(panels, section.value, [_panel(metric) for metric in metrics], y=y)
    _add_row(panels, "Nodes", [_rays_panel(panel) for panel in RAYS_OWN], y=y)
    taken = {panel.number for panel in RAYS_OWN}
    numbers = (number for number in count(1) if number not in taken)
    for panel in panels:
        panel["id"] = panel.get("id") or next(numbers)
    return {
        "uid": UID,
        "title": "hetero",
        "tags": ["ray", "hetero"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "graphTooltip": 1,
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": _variables()},
        "panels": panels,
    }


def write_dashboard(record: Mapping[str, object], path: Path) -> None:
    """Write it as JSON, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(record, indent=2) + "\n")


def query_of(metric: Metric) -> str:
    """What a panel asks Prometheus: of counters the growth a second, of gauges their value, by role."""
    by = ", ".join(metric.labels)
    selected = f"{metric.exported}{{{_FILTER}}}"
    if metric.kind is MetricKind.COUNTER:
        return f"sum by ({by}) (rate({selected}[$__rate_interval]))"
    return f"max by ({by}) ({selected})"


def _panel(metric: Metric) -> dict[str, Any]:
    legend = "{{run}} {{role}}/{{index}}" + (f" {{{{{metric.label}}}}}" if metric.label else "")
    is_rate = metric.kind is MetricKind.COUNTER
    title = metric.name.removeprefix("hetero_").removesuffix("_total").replace("_", " ")
    unit = _UNITS.get(metric.unit, "short")
    if is_rate:
        title += " a second"
        unit = {"bytes": "Bps", "s": "percentunit"}.get(metric.unit, "short")  # seconds a second are shares of a thread
    return _graph(title, metric.meaning + f" ({metric.unit}{'/s' if is_rate else ''})", query_of(metric), legend, unit)


def _rays_panel(own: RaysPanel) -> dict[str, Any]:
    graph = _graph(own.title, f"{own.title}, as Ray tells it", own.query, own.legend, own.unit)
    return graph if own.number is None else {**graph, "id": own.number}


def _graph(title: str, description: str, query: str, legend: str, unit: str) -> dict[str, Any]:
    style = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 8, "showPoints": "auto", "spanNulls": 30_000}
    return {
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "custom": style}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [{"refId": "A", "datasource": _SOURCE, "expr": query, "legendFormat": legend}],
    }


def _add_row(panels: list[dict[str, Any]], title: str, graphs: Sequence[dict[str, Any]], *, y: int) -> int:
    """A titled row of panels; where the next one begins."""
    panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}})
    for number, graph in enumerate(graphs):
        down, across = divmod(number, _COLUMNS)
        graph["gridPos"] = {"h": _HEIGHT, "w": _WIDTH, "x": _WIDTH * across, "y": y + 1 + _HEIGHT * down}
        panels.append(graph)
    return y + 1 + _HEIGHT * -(-len(graphs) // _COLUMNS)


def _variables() -> list[dict[str, Any]]:
    """Which Prometheus, and which runs."""
    runs = f"label_values({METRICS[0].exported}, run)"
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "hide": 2, "refresh": 1},
        {
            "name": "run",
            "label": "run",
            "type": "query",
            "datasource": _SOURCE,
            "definition": runs,
            "query": {"query": runs, "refId": "runs"},
            "refresh": 2,
            "includeAll": True,
            "allValue": ".+",
            "multi": True,
            "current": {"text": "All", "value": "$__all"},
        },
    ]
