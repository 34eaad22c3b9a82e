"""Runs ─► a report's folder: report.html, figures/*.svg, tables/*.{csv,md,tex}, and side pages for what does not fit.

write_report(build_report(read_runs([Path("runs/a"), Path("runs/b")]), [read_facts("paper")]), Path("report"))
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from opasd.analysis.markers import MARKERS
from opasd.errors import ConfigError
from opasd.files import write_bytes
from opasd.recipes.reading import write_yaml
from opasd.report import viewer
from opasd.report.ablations import ablations
from opasd.report.charts import svg
from opasd.report.curves import SEEDS
from opasd.report.facts import Facts
from opasd.report.figure import Figure, to_csv
from opasd.report.figures import SECTIONS, all_figures
from opasd.report.headline import best, forest, headline, measured, method_table
from opasd.report.markers import marker_table
from opasd.report.methods import Method, Slots, find_methods, kind_of, seed_groups
from opasd.report.page import Page, notice, paragraph, part_links, viewer_page
from opasd.report.profile import evaluation_profile, training_settings
from opasd.report.results import costs, evaluations, results
from opasd.report.run import Run
from opasd.report.samples import explorer, explorer_html, side_page
from opasd.report.scores import find_scores
from opasd.report.side_by_side import comparisons
from opasd.report.summary import alignment_note, seeds, settings_that_differ
from opasd.report.tables import Table, forms
from opasd.report.terms import terms
from opasd.report.text import safe, slug, soft_intervals, split_by_size

MANIFEST = ".opasd-report.json"
_LONGEST_CONFIG = 300_000
"""Characters of a configuration that the page shows."""
MOST_ROWS = 24
"""Rows of a table of runs that is not folded."""
MOST_GROUPS = 6
"""Methods with several seeds whose tables are not folded."""


@dataclass
class Report:
    """A report's page, and the figures, tables and further pages that are written beside it."""

    page: Page
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    side_pages: dict[str, str] = field(default_factory=dict)
    """File name ─► HTML."""

    def add_table(self, table: Table, prefix: str = "") -> str:
        """Add the table to the report's files and return its HTML."""
        self.tables.append(dataclasses.replace(table, id=_unused_id(prefix + slug(table.id), self.tables)))
        return self.page.table(self.tables[-1])

    def add_figures(self, figures: Sequence[Figure], prefix: str = "") -> str:
        """Add the figures to the report's files and return their HTML."""
        first = len(self.figures)
        for figure in figures:
            self.figures.append(dataclasses.replace(figure, id=_unused_id(prefix + slug(figure.id), self.figures)))
        return self.page.figures(self.figures[first:])

    def add_side_pages(self, folder: str, pages: Sequence[str], first: int) -> list[str]:
        """Add pages that are numbered from `first`, and return their names."""
        names = [f"{folder}/part-{number:03d}.html" for number in range(first, first + len(pages))]
        self.side_pages |= dict(zip(names, pages, strict=True))
        return names


def build_report(
    runs: Sequence[Run], facts: Sequence[Facts] = (), *, title: str = "", explain: bool = False, remark: str = ""
) -> Report:
    """Return the report of these runs and published numbers.

    `explain`: begin with what the words mean; `remark`: what the reader should know before the numbers."""
    title = title or (runs[0].name if len(runs) == 1 else f"{len(runs)} runs" if runs else "Published numbers")
    methods = find_methods(runs)
    legend, facts = _one_colour_each(methods, facts)
    report = Report(Page(title, _subtitle(runs, methods, facts), legend))
    if runs:
        _add_results(report, runs, methods, explain=explain, remark=remark)
        _add_figures(report, runs, methods)
        _add_seeds(report, methods)
        _add_viewer(report, runs)
        _add_comparisons(report, runs)
        _add_samples(report, runs)
        _add_settings(report, runs, methods)
    for number, published in enumerate(facts, 1):
        content = [paragraph(published.source)]
        for table in published.tables:
            content += [f"<h3>{safe(table.title)}</h3>", report.add_table(table, "facts-")]
        content.append(report.add_figures(published.figures, "facts-"))
        heading = "Published numbers" if len(facts) == 1 else f"Published numbers {number}"
        report.page.section(f"facts-{number}", heading, *content)
    return report


def _one_colour_each(methods: Sequence[Method], facts: Sequence[Facts]) -> tuple[dict[int, str], list[Facts]]:
    """Return slot ─► name of all methods, and the published figures and rows in the colours of the same methods."""
    legend = {method.slot: method.name for method in methods}
    names = list(dict.fromkeys(series.name for own in facts for figure in own.figures for series in figure.series))
    kinds = [method.kind for method in methods]
    taken = Slots([*kinds, *map(kind_of, names)])
    of_kind: dict[str, int] = {}
    for method in methods:
        taken.keep(method.slot)
        of_kind.setdefault(method.kind, method.slot)
    slots = {}
    for name in names:
        kind = kind_of(name)
        slots[name] = of_kind[kind] if kind in of_kind else taken.of(kind)
        of_kind |= {kind: slots[name]} if kind else {}
        legend.setdefault(slots[name], name)
    recoloured = []
    for own in facts:
        figures = [
            dataclasses.replace(figure, series=[dataclasses.replace(s, slot=slots[s.name]) for s in figure.series])
            for figure in own.figures
        ]
        tables = [
            dataclasses.replace(table, slots=[of_kind.get(kind_of(row[0].text) or "-") for row in table.rows])
            for table in own.tables
        ]
        recoloured.append(dataclasses.replace(own, figures=figures, tables=tables))
    return legend, recoloured


def write_report(report: Report, folder: Path, rasterise: Callable[[str], bytes] | None = None) -> Path:
    """Write all files and return the page's path; first remove the files of an earlier report in the folder."""
    files: dict[str, str | bytes] = {"report.html": report.page.html()}
    for figure in report.figures:
        picture = svg(figure, standalone=True)
        files[f"figures/{figure.id}.svg"] = picture
        files[f"figures/{figure.id}.csv"] = to_csv(figure)
        if rasterise is not None:
            files[f"figures/{figure.id}.png"] = rasterise(picture)
    for table in report.tables:
        files |= {f"tables/{table.id}.{ending}": text for ending, text in forms(table).items()}
    files |= report.side_pages
    try:
        _clear(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).write_text(json.dumps({"files": sorted(files)}, indent=1), encoding="utf-8")
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(folder / name, content if isinstance(content, bytes) else content.encode("utf-8", "replace"))
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror}; give another --out") from error
    return folder / "report.html"


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds anything but an earlier report."""
    if folder.is_dir() and ((folder / MANIFEST).is_file() or not any(folder.iterdir())):
        return
    if folder.exists() or folder.is_symlink():
        raise ConfigError(f"{folder} exists and is no report of ours, and is not overwritten; give another --out")


def _add_results(report: Report, runs: Sequence[Run], methods: Sequence[Method], *, explain: bool, remark: str) -> None:
    """Add the answer: a sentence, methods by benchmarks with the differences beside, ablations, and every run."""
    scores = find_scores(methods)
    content = [f'<p class="remark">{"<br>".join(map(safe, remark.splitlines()))}</p>' if remark else ""]
    common = scores.comparable()
    if answer := headline(common):
        first = f'<p class="first"><bdi>{soft_intervals(ahead)}</bdi></p>' if (ahead := best(common)) else ""
        about = f'<p class="soft small">{safe(measured(common))}</p>'
        content.append(f'<p class="headline"><bdi>{soft_intervals(answer)}</bdi></p>{first}{about}')
    content.append(notice("What is missing", {run.name: run.notes for run in runs}))
    table, figure = method_table(scores), forest(common)
    shown = report.add_table(table) if table else ""
    drawn = report.add_figures([figure]) if figure else ""
    content.append(f'<div class="answer"><div>{shown}</div>{drawn}</div>' if drawn else shown)
    every = report.add_table(results(runs))
    more = f"Every run: {len(runs)} rows, with rollouts, lengths and markers"
    folded = table is not None and len(runs) > 1
    content.append(f"<details><summary>{more}</summary>{every}</details>" if folded else every)
    words = terms(open_=explain)
    report.page.section("results", "Results", *([words] if explain else []), *content, *([] if explain else [words]))
    if tables := ablations(scores):
        about = "Methods that differ in one setting, by its value; the best of a column is bold."
        each = (f"<div><h3>{safe(table.title)}</h3>{report.add_table(table)}</div>" for table in tables)
        report.page.section(
            "ablations", "Ablations", paragraph(about), f'<div class="pairs wider">{"".join(each)}</div>'
        )


def _add_figures(report: Report, runs: Sequence[Run], methods: Sequence[Method]) -> None:
    tables = {
        "Evaluation": [evaluation_profile(runs), evaluations(runs)],
        "Cost": [costs(runs)],
        "Epistemic markers": [marker_table(methods)],
    }
    several = any(len(method.runs) > 1 for method in methods)
    for heading, figures in all_figures(methods).items():
        content = [_folded(report, table) for table in tables.get(heading, ()) if table is not None]
        if heading == "Attention" and (lines := [line for run in runs if (line := alignment_note(run))]):
            listed = f"Mean divergence. {'. '.join(lines)}."
            folded = f"<details><summary>Mean divergence of {len(lines)} runs</summary>{paragraph(listed)}</details>"
            content.append(paragraph(listed) if len(lines) < 4 else folded)
        content.append(report.add_figures(figures))
        if any(content):
            about = SECTIONS[heading]["about"].format(markers=", ".join(MARKERS))
            about += f" {SEEDS}" if several and figures else ""
            report.page.section(slug(heading).lower(), heading, paragraph(about), *content)


def _folded(report: Report, table: Table) -> str:
    """Return the table, folded into one line if it is long."""
    shown, rows = report.add_table(table), sum(len(row) > 1 for row in table.rows)
    return (
        shown if rows <= MOST_ROWS else f"<details><summary>{safe(table.title)}: {rows} rows</summary>{shown}</details>"
    )


def _add_seeds(report: Report, methods: Sequence[Method]) -> None:
    """Add the statistics of each method with several seeds, folded where there are many such methods."""
    content, groups = [], seed_groups(methods)
    for number, method in enumerate(groups, 1):
        table = seeds(method, number)
        title, shown = safe(table.title), report.add_table(table)
        folded = f"<details><summary><bdi>{title}</bdi></summary>{shown}</details>"
        content.append(f"<h3>{title}</h3>{shown}" if len(groups) <= MOST_GROUPS else folded)
    if content:
        about = "Runs whose configurations differ in nothing but the seed, put together."
        report.page.section("seeds", "Seeds", paragraph(about), *content)


def _add_viewer(report: Report, runs: Sequence[Run]) -> None:
    """Add attention records to the page as far as they fit, one of each run first, and the others to side pages."""
    turns = zip_longest(*(run.attention for run in runs))
    records = [record for turn in turns for record in turn if record is not None]
    parts = split_by_size(records, lambda record: len(json.dumps(record)), viewer.PAGE_BYTES)
    if not parts:
        return
    title, subtitle = f"{report.page.title}: attention", "report.html is the report."
    side_pages = [viewer_page(title, subtitle, records).html() for records in parts[1:]]
    names = report.add_side_pages("attention", side_pages, 2)
    more = f'<p class="small">More trajectories, in side files: {part_links(names, 2)}.</p>' if names else ""
    report.page.add_viewer(parts[0], "where-they-look", "Where they look", more)


def _add_comparisons(report: Report, runs: Sequence[Run]) -> None:
    pairs, count = comparisons(runs)
    if pairs:
        about = (
            f"The same problem, answered by several runs ({count:,} such problems; those first whose verdicts differ). "
            "Faded: what an answer shares with the first one. Marked: the first step in which they part."
        )
        report.page.section("side-by-side", "Side by side", paragraph(about), f'<div class="list">{pairs}</div>')


def _add_samples(report: Report, runs: Sequence[Run]) -> None:
    if not any(run.samples for run in runs):
        return
    shown = explorer(runs)
    side_pages = [side_page(report.page.title, data, n, len(shown.side)) for n, data in enumerate(shown.side, 1)]
    names = report.add_side_pages("samples", side_pages, 1)
    report.page.data("sample-data", shown.data)
    report.page.section("samples", "Samples", explorer_html(shown, names))


def _add_settings(report: Report, runs: Sequence[Run], methods: Sequence[Method]) -> None:
    content = []
    if table := training_settings(methods):
        content += ["<h3>Training</h3>", report.add_table(table)]
    if table := settings_that_differ(methods):
        content += ["<h3>What differs</h3>", report.add_table(table)]
    for run in runs:
        if run.config:
            text = write_yaml(run.config) + _about_machine(run)
            content.append(
                f'<details class="config"><summary><bdi>{safe(run.name)}</bdi>: resolved configuration</summary>'
                f'<pre tabindex="0">{safe(text[:_LONGEST_CONFIG])}</pre></details>'
            )
    if content:
        report.page.section("settings", "Settings", *content)


def _about_machine(run: Run) -> str:
    versions = run.environment.get("versions")
    lines = []
    if isinstance(versions, dict):
        lines.append("versions: " + ", ".join(f"{name} {version}" for name, version in versions.items() if version))
    for name in ("time", "command", "python", "platform", "cpus", "gpus", "processes"):
        value = run.environment.get(name)
        if value not in (None, []):
            lines.append(f"{name}: {' '.join(map(str, value)) if isinstance(value, list) else value}")
    return "".join(f"\n# {line}" for line in lines)


def _subtitle(runs: Sequence[Run], methods: Sequence[Method], facts: Sequence[Facts]) -> str:
    models = dict.fromkeys(str(name) for run in runs if (name := run.setting("model", "name_or_path")))
    steps, samples = sum(run.spending.steps for run in runs), sum(len(run.samples) for run in runs)
    parts = [
        ", ".join(models),
        f"{len(methods)} methods" if 1 < len(methods) < len(runs) else "",
        f"{steps:,} training steps" if steps else "",
        f"{samples:,} sampled completions" if samples else "",
        f"{len(facts)} files of published numbers" if len(facts) > 1 else "published numbers" if facts else "",
    ]
    return " · ".join(part for part in parts if part)


def _unused_id(wanted: str, others: Sequence[Figure] | Sequence[Table]) -> str:
    """Return the id, which is a file's name too, with a number behind it if it is used already."""
    used = {other.id for other in others}
    return next(name for name in (wanted, *(f"{wanted}-{n}" for n in range(2, 10_000))) if name not in used)


def _clear(folder: Path) -> None:
    """Remove the files that an earlier report wrote, and nothing else."""
    try:
        names = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for name in names if isinstance(names, list) else []:
        target = folder / str(name)
        if target.resolve().is_relative_to(folder.resolve()):
            target.unlink(missing_ok=True)
