"""The page: self-contained, without network, light and dark, for phone and paper.

All text from a run or a model is escaped as HTML, or embedded as JSON and set as text. The content security policy
names the page's own scripts and styles by their digests, so that nothing else could run even if some text slipped
through.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from opasd.report.assets import CHART_STYLE, COLOURS, DARK, LIGHT, asset, dot, template
from opasd.report.charts import data, svg
from opasd.report.figure import Figure
from opasd.report.tables import Table, forms, to_html
from opasd.report.text import digest, embedded, safe, short_names, without_shared_start

GENERATOR = "opasd report"
LONGEST_CHIP = 40
"""Characters of a method's name in the page's legend."""
MANY_CHIPS = 16
"""Beyond so many methods the legend is higher than its box, and fades out at the bottom."""
VIEWER = ("overview.js", "slide.js", "viewer.js")


class Page:
    """Sections in order, and the data that the page's scripts read."""

    def __init__(self, title: str, subtitle: str, legend: Mapping[int, str] | None = None) -> None:
        self.title = title
        self.subtitle = subtitle
        self.legend = legend or {}
        """Slot ─► name of the methods on the page."""
        self._sections: list[tuple[str, str, str]] = []
        self._figures: list[dict[str, Any]] = []
        self._tables: dict[str, dict[str, str]] = {}
        self._titles: Counter[str] = Counter()
        self._data: dict[str, Any] = {}
        self._viewer = False

    def section(self, name: str, title: str, *content: str) -> None:
        """Add HTML under a heading that the navigation links to; without a title there is neither."""
        self._sections.append((name, title, "".join(content)))

    def figures(self, figures: Sequence[Figure]) -> str:
        """Return the figures side by side."""
        return f'<div class="charts">{"".join(map(self._figure, figures))}</div>' if figures else ""

    def table(self, table: Table) -> str:
        """Return the table with its note and buttons to save it."""
        self._tables[table.id] = forms(table)
        self._titles[table.title] += 1
        nth = self._titles[table.title]
        label = table.title if nth == 1 else f"{table.title} ({nth})"
        tools = "".join(
            f'<button type="button" class="tool" data-table="{safe(table.id)}" data-as="{kind}">{name}</button>'
            for kind, name in (("csv", "CSV"), ("md", "Markdown"), ("tex", "LaTeX"))
        )
        note = f'<p class="soft small">{safe(table.caption)}</p>' if table.caption else ""
        return f'{to_html(table, label)}{note}<div class="tools">{tools}</div>'

    def data(self, name: str, value: Any) -> None:
        """Add data for a script, under the id `name`."""
        self._data[name] = value

    def add_viewer(self, records: Sequence[Mapping[str, Any]], name: str, title: str, more: str = "") -> None:
        """Add a section with the attention viewer, and its script and style; `more` is HTML below it."""
        self._viewer = True
        self.data("attention-data", list(records))
        self.section(name, title, template("viewer.html"), more)

    def html(self) -> str:
        """Return the whole document."""
        dots = "".join(f".dot.c{n}{{--dot:var(--run{n})}}" for n in range(COLOURS))
        style = template("theme.css", light=LIGHT, dark=DARK) + CHART_STYLE + dots + asset("page.css")
        style += asset("viewer.css") if self._viewer else ""
        scripts = [asset("charts.js"), asset("math.js"), asset("page.js"), *map(asset, VIEWER if self._viewer else ())]
        blobs = {"figure-data": self._figures, "table-data": self._tables, "chart-style": CHART_STYLE, **self._data}
        sections = "".join(
            f'<section id="{name}">{f"<h2>{safe(heading)}</h2>" if heading else ""}{content}</section>'
            for name, heading, content in self._sections
        )
        blocks = "".join(
            f'<script type="application/json" id="{name}">{embedded(value)}</script>' for name, value in blobs.items()
        )
        document = template(
            "page.html",
            script_digests=" ".join(map(digest, scripts)),
            style_digest=digest(style),
            generator=GENERATOR,
            title=safe(self.title),
            style=style,
            links="".join(f'<a href="#{name}">{safe(title)}</a>' for name, title, _ in self._sections if title),
            chips=self._chips(),
            subtitle=safe(self.subtitle),
            sections=sections,
            data=blocks,
            scripts="".join(f"<script>{script}</script>" for script in scripts),
        )
        return f"{document}\n"

    def _figure(self, figure: Figure) -> str:
        self._figures.append(data(figure))
        caption = f'<p class="soft small">{safe(figure.caption)}</p>' if figure.caption else ""
        tools = "".join(
            f'<button type="button" class="tool" data-get="{kind}">{kind.upper()}</button>'
            for kind in ("svg", "png", "csv")
        )
        return (
            f'<figure class="card" id="fig-{safe(figure.id)}"><figcaption>{safe(figure.title)}'
            f'</figcaption><div class="chart">{svg(figure)}</div>{caption}<div class="tools">{tools}</div></figure>'
        )

    def _chips(self) -> str:
        if len(self.legend) < 2:
            return ""
        names = list(self.legend.values())
        parts = short_names(without_shared_start(names) if len(names) > COLOURS else names, LONGEST_CHIP)
        chips = "".join(
            f'<button type="button" class="chip" data-run="{slot}" aria-pressed="true" title="{safe(name)}">'
            f'<i class="{dot(slot)}"></i><bdi>{safe(part)}</bdi></button>'
            for (slot, name), part in zip(self.legend.items(), parts, strict=True)
        )
        every = '<button type="button" class="tool" id="every-run">hide all</button>' if len(self.legend) > 2 else ""
        many = " many" if len(names) > MANY_CHIPS else ""
        return f'<div class="chips{many}" role="group" aria-label="Methods shown" tabindex="0">{every}{chips}</div>'


def alike(items: Mapping[str, Sequence[str]]) -> list[tuple[list[str], Sequence[str]]]:
    """Group names with the same remarks, which may begin with the names; leave out names without remarks."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, remarks in items.items():
        if remarks:
            own = re.compile(rf"^{re.escape(name)}(?=[./])")
            groups.setdefault(tuple(own.sub("…", remark) for remark in remarks), []).append(name)
    return [(names, same if len(names) > 1 else items[names[0]]) for same, names in groups.items()]


def notice(heading: str, items: Mapping[str, Sequence[str]]) -> str:
    """Return one line that folds out: how many remarks there are, and below it each name with its own."""
    rows = ""
    for names, remarks in alike(items):
        bold = ", ".join(f"<b><bdi>{safe(name)}</bdi></b>" for name in names)
        rows += f"<li>{bold}: {safe('; '.join(remarks))}</li>"
    concerned = sum(map(bool, items.values()))
    many = f"{concerned} of {len(items)} runs" if len(items) > 1 else "this run"
    return (
        f'<details class="notice"><summary><b>{safe(heading)}</b>: remarks on {many}</summary><ul>{rows}</ul></details>'
        if rows
        else ""
    )


def paragraph(text: str) -> str:
    return f'<p class="soft">{safe(text)}</p>'


def part_links(names: Sequence[str], first: int) -> str:
    """Return links to side pages, which are numbered from `first`."""
    return ", ".join(f'<a href="{safe(name)}">part {number}</a>' for number, name in enumerate(names, first))


def viewer_page(title: str, subtitle: str, records: Sequence[Mapping[str, Any]]) -> Page:
    """Return a page with only the attention viewer."""
    page = Page(title, subtitle)
    page.add_viewer(records, "viewer-section", "")
    return page
