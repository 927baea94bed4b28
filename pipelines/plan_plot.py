"""What throughput costs, as a picture: the cheapest plan at each throughput, and the plan that was taken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hetero.observe.run_folder import write_whole
from hetero.planning.plan import Plan
from pipelines.run_plots import READABLE, plot_figure, svg_of

_LINE, _TAKEN = "#08519c", "#d94801"


def save_front_plot(front: Sequence[Plan], *, taken: Plan, path: Path) -> None:
    """Write samples a second against money an hour as an SVG file. front: by ascending throughput."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, front_plot(front, taken=taken).replace("<svg", '<svg width="960"', 1))


def front_plot(front: Sequence[Plan], *, taken: Plan) -> str:
    """An `<svg>` element. Each point has the nodes of its plan beside it; steps, as nodes come whole."""
    with plot_figure(height=4.6) as (figure, axes):
        axes.plot([plan.throughput for plan in front], [plan.price for plan in front], color=_LINE, linewidth=0.8)
        axes.scatter([plan.throughput for plan in front], [plan.price for plan in front], color=_LINE, s=18, zorder=3)
        for plan in front:
            nodes = ", ".join(f"{count} {kind}" for kind, count in plan.nodes.items())
            place = {"textcoords": "offset points", "xytext": (-5, 4), "ha": "right", "fontsize": 8}
            axes.annotate(nodes, (plan.throughput, plan.price), **place)  # type: ignore[arg-type]
        axes.scatter([taken.throughput], [taken.price], marker="D", color=_TAKEN, s=40, zorder=4, label="this plan")
        for axis, set_scale in ((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale)):
            set_scale("log")
            axis.set_major_formatter(READABLE)
        axes.set_xlabel("samples a second")
        axes.set_ylabel("price an hour")
        axes.legend(loc="upper left")
        return svg_of(figure)
