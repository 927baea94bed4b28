"""A plan as people read it: stages, roles, what was assumed, cost against throughput, and the rest explained."""

from __future__ import annotations

from collections.abc import Sequence

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table

from hetero.planning.plan import Plan
from hetero.planning.split_explain import Alternative
from pipelines.plan_file import PlanFile

_BAR = 16


def plan_report(
    file: PlanFile, *, front: Sequence[Plan], alternatives: Sequence[Alternative], assumed: Sequence[str]
) -> RenderableType:
    """Everything a plan says, one table for each question."""
    plan = file.plan
    proof = "no cheaper one exists" if plan.proven else f"not proven: none costs less than {plan.bound:,.2f} an hour"
    parts: list[RenderableType] = [
        f"{plan.throughput:,.0f} samples/s for {plan.price:,.2f} an hour, {plan.cost_per_million:.4f} for a million "
        f"samples; {proof}",
        *([] if file.predicted is None else [f"predicted from measured tasks: {file.predicted:,.0f} samples/s"]),
        _stages(file),
        *(f"assumed: {line}" for line in assumed),
    ]
    if front:
        parts.append(_front(front))
    if alternatives:
        parts.append(_alternatives(alternatives))
    return Group(*parts)


def _stages(file: PlanFile) -> Table:
    table = Table(title="stages", title_justify="left", box=None)
    for name in ("tasks", "nodes", "price an hour", "samples/s", "bound by"):
        table.add_column(name)
    for stage in file.plan.stages:
        nodes = f"{stage.nodes} x {stage.kind}"
        reached = f"{stage.throughput:,.0f}"
        table.add_row(" + ".join(stage.tasks), nodes, f"{stage.price:,.2f}", reached, stage.bound_by)
    roles = "; ".join(f"{name} {role.count} with {role.threads} threads" for name, role in file.roles.items())
    shares = ", ".join(f"{share:.1%}" for share in file.shares)
    table.caption = f"{roles}; lists pooled on the {file.pooling}" + (
        f"; shares of the batch {shares}" if shares else ""
    )
    table.caption_justify = "left"
    return table


def _front(front: Sequence[Plan]) -> Table:
    table = Table(title="cheapest at each throughput", title_justify="left", box=None)
    for name in ("samples/s", "", "price an hour", "", "for a million samples", "nodes"):
        table.add_column(name, justify="left" if name in ("nodes", "") else "right")
    fastest, dearest = (max(getattr(plan, name) for plan in front) for name in ("throughput", "price"))
    for plan in front:
        nodes = ", ".join(f"{count} {kind}" for kind, count in plan.nodes.items())
        table.add_row(
            f"{plan.throughput:,.0f}",
            Bar(fastest, 0, plan.throughput, width=_BAR),
            f"{plan.price:,.2f}",
            Bar(dearest, 0, plan.price, width=_BAR),
            f"{plan.cost_per_million:.4f}",
            nodes,
        )
    return table


def _alternatives(alternatives: Sequence[Alternative]) -> Table:
    table = Table(title="alternatives at this throughput", title_justify="left", box=None)
    table.add_column("what")
    table.add_column("why not")
    for each in alternatives:
        table.add_row(each.what, each.reason)
    return table
