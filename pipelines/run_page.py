"""The page of a run: one HTML file with everything in it, that opens anywhere and fetches nothing."""

from __future__ import annotations

import html
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hetero import __version__
from hetero.observe.run_folder import write_whole
from pipelines.page_parts import Absent, Figure, Part, Section, TablePart
from pipelines.run_record import RunRecord
from pipelines.run_sections import sections

MOST_BYTES = 2_000_000
"""What a page may take."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; margin: 0 auto; max-width: 1040px; padding: 24px 20px 60px }
h1 { font-size: 26px; margin: 0 } h2 { font-size: 19px; margin: 38px 0 8px; border-bottom: 1px solid #ddd }
p.lead { color: #555; margin: 4px 0 } p.absent { color: #666; font-style: italic }
nav { margin: 14px 0; font-size: 14px } nav a { margin-right: 14px }
a { color: #08519c } figure { margin: 12px 0 20px } figure svg { width: 100%; height: auto; display: block }
figcaption { color: #555; font-size: 14px; margin-top: 2px } .warning { color: #8a3b00 }
table { border-collapse: collapse; margin: 10px 0 18px; font-size: 14px }
th, td { text-align: left; padding: 3px 18px 3px 0; vertical-align: top }
th { color: #555; font-weight: 600; border-bottom: 1px solid #ccc }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums }
@media print { nav { display: none } }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPage:
    """What was written. figures: plots in it. left_out: sections without anything to show."""

    path: str
    bytes: int
    figures: int
    left_out: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        return {"path": self.path, "bytes": self.bytes, "figures": self.figures, "left_out": list(self.left_out)}


def write_page(run: Path, *, out: Path | None = None) -> WrittenPage:
    """The page of the run in folder `run`, finished or not. out: default, `report.html` in the folder.

    Raises UserError where there is no run, DataError where it is damaged.
    """
    record = RunRecord(run)
    path = out or record.folder.path / "report.html"
    found = sections(record)
    text = page(record, found)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    parts = [part for section in found for part in section.parts]
    return WrittenPage(
        path=str(path),
        bytes=len(text.encode()),
        figures=sum(isinstance(part, Figure) for part in parts),
        left_out=tuple(s.title for s in found if all(isinstance(part, Absent) for part in s.parts)),
    )


def page(record: RunRecord, found: Sequence[Section]) -> str:
    """The whole HTML."""
    title = html.escape(f"{record.name}: {record.folder.name}")
    begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.events[0].t))
    placement = html.escape(str(record.first("run.started").get("placement", "")))
    links = "".join(f'<a href="#{section.anchor}">{html.escape(section.title)}</a>' for section in found)
    body = "".join(_section(section) for section in found)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body>\n<h1>{html.escape(record.name)}</h1>"
        f'<p class="lead">{html.escape(record.status)} · begun {begun} · {placement} · '
        f"{html.escape(str(record.folder.path))}</p><nav>{links}</nav>\n{body}"
        f'<p class="lead">Made by hetero {__version__} from the files in the run\'s folder. Words are those of '
        "docs/summary.md and docs/dashboard.md.</p></body></html>\n"
    )


def _section(section: Section) -> str:
    parts = "".join(_part(part) for part in section.parts)
    return f'<section id="{section.anchor}"><h2>{html.escape(section.title)}</h2>{parts}</section>\n'


def _part(part: Part) -> str:
    if isinstance(part, Figure):
        label = html.escape(part.caption, quote=True)
        return (
            f'<figure role="img" aria-label="{label}" data-plot="{part.name}">{part.svg}'
            f"<figcaption>{html.escape(part.caption)}</figcaption></figure>"
        )
    if isinstance(part, TablePart):
        return _table(part)
    kind = "absent" if isinstance(part, Absent) else "warning" if part.is_warning else "told"
    return f'<p class="{kind}">{html.escape(part.text)}</p>'


def _table(table: TablePart) -> str:
    def row(cells: Iterable[str], tag: str) -> str:
        kinds: list[str] = [' class="number"' if number in table.numbers else "" for number in range(len(table.head))]
        told = "".join(f"<{tag}{kind}>{html.escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
        return f"<tr>{told}</tr>"

    head = row(table.head, "th") if any(table.head) else ""
    return f"<table>{head}{''.join(row(cells, 'td') for cells in table.rows)}</table>"
