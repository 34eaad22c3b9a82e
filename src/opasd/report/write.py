"""Runs ─► a report's folder: report.html, figures/*.svg, tables/*.{csv,md,tex}, samples/*.html if there are many.

build(read_runs([Path("runs/a"), Path("runs/b")]), [read_facts("paper")], Report(Path("report")))
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from opasd.errors import ConfigError
from opasd.recipes.reading import write_yaml
from opasd.report import viewer
from opasd.report.charts import svg
from opasd.report.facts import Facts
from opasd.report.figures import Figure, all_figures
from opasd.report.figures import to_csv as figure_csv
from opasd.report.folders import Run
from opasd.report.page import Page, notice, paragraph, viewer_page
from opasd.report.samples import comparisons, explorer, explorer_html, side_page
from opasd.report.summary import (
    alignment_note,
    costs,
    evaluations,
    results,
    seed_figures,
    seed_groups,
    seeds,
    settings_that_differ,
)
from opasd.report.tables import Table, to_csv, to_latex, to_markdown
from opasd.report.text import safe, slug

MANIFEST = ".opasd-report.json"
Rasterise = Callable[[str], bytes]


@dataclass
class Made:
    """What a report is made of, before it is written."""

    page: Page
    figures: list[Figure]
    tables: list[Table]
    side: dict[str, str]


def make(runs: Sequence[Run], facts: Sequence[Facts] = (), *, title: str = "", preface: str = "") -> Made:
    """The report of these runs; `preface` is HTML that stands before everything else."""
    title = title or (runs[0].name if len(runs) == 1 else f"{len(runs)} runs" if runs else "Published numbers")
    made = Made(Page(title, _subtitle(runs, facts), [run.name for run in runs]), [], [], {})
    page = made.page
    if runs:
        _add_runs(made, runs, preface)
    for place, found in enumerate(facts, 1):
        content = [paragraph(found.source)]
        for table in _renamed(found.tables, made.tables, "facts-"):
            content += [f"<h3>{safe(table.title)}</h3>", page.table(table)]
        content.append(page.figures(_renamed(found.figures, made.figures, "facts-")))
        page.section(
            f"facts-{place}", "Published numbers" if len(facts) == 1 else f"Published numbers {place}", *content
        )
    return made


def write(made: Made, folder: Path, rasterise: Rasterise | None = None) -> Path:
    """All files; gives the page's path. What an earlier report left in the folder is removed first."""
    files: dict[str, str | bytes] = {"report.html": made.page.html()}
    for figure in made.figures:
        picture = svg(figure, standalone=True)
        files[f"figures/{figure.id}.svg"] = picture
        files[f"figures/{figure.id}.csv"] = figure_csv(figure)
        if rasterise is not None:
            files[f"figures/{figure.id}.png"] = rasterise(picture)
    for table in made.tables:
        files[f"tables/{table.id}.csv"] = to_csv(table)
        files[f"tables/{table.id}.md"] = to_markdown(table)
        files[f"tables/{table.id}.tex"] = to_latex(table)
    files |= made.side
    try:
        _clear(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).write_text(json.dumps({"files": sorted(files)}, indent=1), encoding="utf-8")
        for name, content in files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            whole = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
            staged = target.with_name(f".{target.name}.part")
            staged.write_bytes(whole)
            staged.replace(target)
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror}; give another --out") from error
    return folder / "report.html"


def check_folder(folder: Path) -> None:
    """Refuse to write where something else is."""
    if folder.is_dir() and ((folder / MANIFEST).is_file() or not any(folder.iterdir())):
        return
    if folder.exists() or folder.is_symlink():
        raise ConfigError(f"{folder} exists and is no report of ours, and is not overwritten; give another --out")


def _add_runs(made: Made, runs: Sequence[Run], preface: str) -> None:
    page = made.page
    made.tables.append(results(runs))
    first = [preface, notice("What is missing", {run.name: run.notes for run in runs}), page.table(made.tables[0])]
    page.section("results", "Results", *first)
    tables = {"Evaluation": evaluations(runs), "Cost": costs(runs)}
    for heading, about, figures in all_figures(runs):
        content = []
        if table := tables.get(heading):
            made.tables.append(table)
            content.append(page.table(table))
        if heading == "Attention" and (lines := [line for run in runs if (line := alignment_note(run))]):
            content.append(paragraph("Mean divergence. " + ". ".join(lines) + "."))
        content.append(page.figures(_renamed(figures, made.figures)))
        if any(content):
            page.section(slug(heading).lower(), heading, paragraph(about), *content)
    _add_seeds(made, runs)
    _add_viewer(made, runs)
    pairs, count = comparisons(runs)
    if pairs:
        about = (
            f"The same problem, answered by several runs ({count:,} such problems; those first whose verdicts differ). "
            "Faded: what an answer shares with the first one. Marked: the first step in which they part."
        )
        page.section("side-by-side", "Side by side", paragraph(about), f'<div class="list">{pairs}</div>')
    if any(run.samples for run in runs):
        found = explorer(runs)
        names = [f"samples/part-{place:03d}.html" for place in range(1, len(found.side) + 1)]
        for place, (name, data) in enumerate(zip(names, found.side, strict=True), 1):
            made.side[name] = side_page(page.title, data, place, len(names))
        page.data("sample-data", found.data)
        page.section("samples", "Samples", explorer_html(found, names))
    _add_settings(made, runs)


def _add_viewer(made: Made, runs: Sequence[Run]) -> None:
    """Attention records in the page as far as they fit, one of each run first; the others in side files."""
    turns = zip_longest(*(run.attention for run in runs))
    parts = viewer.parts([record for turn in turns for record in turn if record is not None])
    if not parts:
        return
    names = [f"attention/part-{place:03d}.html" for place in range(2, len(parts) + 1)]
    for name, records in zip(names, parts[1:], strict=True):
        made.side[name] = viewer_page(f"{made.page.title}: attention", "report.html is the report.", records).html()
    links = ", ".join(f'<a href="{safe(name)}">part {place}</a>' for place, name in enumerate(names, 2))
    more = f'<p class="small">More trajectories, in side files: {links}.</p>' if links else ""
    made.page.use_viewer()
    made.page.data("attention-data", parts[0])
    made.page.section("where-they-look", "Where they look", viewer.SHELL, viewer.ABOUT, more)


def _add_seeds(made: Made, runs: Sequence[Run]) -> None:
    content = []
    for place, members in enumerate(seed_groups(runs), 1):
        table = seeds(runs, members, place)
        made.tables.append(table)
        content += [f"<h3>{safe(table.title)}</h3>", made.page.table(table)]
        content.append(made.page.figures(_renamed(seed_figures(runs, members, place), made.figures)))
    if content:
        about = "Runs whose configurations differ in nothing but the seed, put together."
        made.page.section("seeds", "Seeds", paragraph(about), *content)


def _add_settings(made: Made, runs: Sequence[Run]) -> None:
    content = []
    if table := settings_that_differ(runs):
        made.tables.append(table)
        content += ["<h3>What differs</h3>", made.page.table(table)]
    for run in runs:
        if run.config:
            text = write_yaml(run.config) + _about_machine(run)
            content.append(
                f"<details><summary><bdi>{safe(run.name)}</bdi>: resolved configuration</summary>"
                f"<pre>{safe(text[:300_000])}</pre></details>"
            )
    if content:
        made.page.section("settings", "Settings", *content)


def _about_machine(run: Run) -> str:
    found = run.environment
    versions = found.get("versions")
    lines = []
    if isinstance(versions, dict):
        lines.append("versions: " + ", ".join(f"{name} {version}" for name, version in versions.items() if version))
    for name in ("time", "command", "python", "platform", "cpus", "gpus", "processes"):
        value = found.get(name)
        if value not in (None, []):
            lines.append(f"{name}: {' '.join(map(str, value)) if isinstance(value, list) else value}")
    return "".join(f"\n# {line}" for line in lines)


def _subtitle(runs: Sequence[Run], facts: Sequence[Facts]) -> str:
    models = dict.fromkeys(str(name) for run in runs if (name := run.setting("model", "name_or_path")))
    steps, samples = sum(run.spending.steps for run in runs), sum(len(run.samples) for run in runs)
    parts = [
        ", ".join(models),
        f"{steps:,} training steps" if steps else "",
        f"{samples:,} sampled completions" if samples else "",
        f"{len(facts)} files of published numbers" if len(facts) > 1 else "published numbers" if facts else "",
    ]
    return " · ".join(part for part in parts if part)


def _renamed(things: Sequence, taken: list, prefix: str = "") -> list:  # pyright: ignore[reportMissingTypeArgument]
    """Tables or figures with ids that are file names and stand once in the report; they are added to `taken`."""
    renamed = []
    for thing in things:
        base = prefix + slug(thing.id)
        used = {other.id for other in taken}
        unique = next(name for name in (base, *(f"{base}-{n}" for n in range(2, 10_000))) if name not in used)
        taken.append(dataclasses.replace(thing, id=unique))
        renamed.append(taken[-1])
    return renamed


def _clear(folder: Path) -> None:
    """Remove what an earlier report wrote, and nothing else."""
    try:
        names = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for name in names if isinstance(names, list) else []:
        target = folder / str(name)
        if target.resolve().is_relative_to(folder.resolve()):
            target.unlink(missing_ok=True)
