"""A table, and its forms as HTML, CSV, Markdown and LaTeX."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from opasd.report.assets import dot
from opasd.report.text import csv_text, printable, safe, soft_intervals


@dataclass(frozen=True)
class Cell:
    """The shown text, and the number by which the column sorts."""

    text: str
    value: float | None = None
    best: bool = False
    """Whether it is the best of its column in its group, and shown bold."""
    wraps: bool = False
    """Whether the text is long and may break into lines."""


@dataclass(frozen=True)
class Table:
    """`rows` under `header`; a row of a single cell heads a group; a line separates the rows from row `rule` on."""

    id: str
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    rule: int | None = None
    slots: Sequence[int | None] = ()
    """The slot of each row's method, for its colour; empty if rows belong to no method."""
    details: Sequence[Sequence[Sequence[Cell]]] = ()
    """For each row, rows that fold out below it in the page; the other forms have none of them."""


def forms(table: Table) -> dict[str, str]:
    """Return the table as the contents of files, by the ending of their names."""
    return {"csv": to_csv(table), "md": to_markdown(table), "tex": to_latex(table)}


def to_csv(table: Table) -> str:
    """Return the shown texts, separated by commas; groups become a first column."""
    grouped = any(len(row) == 1 for row in table.rows)
    rows, group = [[*(["group"] if grouped else []), *table.header]], ""
    for row in table.rows:
        if len(row) == 1:
            group = row[0].text
        else:
            rows.append([*([group] if grouped else []), *(cell.text for cell in row)])
    return csv_text(rows)


def to_markdown(table: Table) -> str:
    """Return a pipe table, with the first column aligned left and the others right."""
    lines = [
        _pipes(list(map(_markdown, table.header))),
        "|" + "|".join([":---", *["---:"] * (len(table.header) - 1)]) + "|",
    ]
    for row in table.rows:
        if len(row) == 1:
            lines.append(_pipes([f"*{_markdown(row[0].text)}*", *[""] * (len(table.header) - 1)]))
        else:
            lines.append(_pipes([f"**{_markdown(cell.text)}**" if cell.best else _markdown(cell.text) for cell in row]))
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    """Return a booktabs table."""
    columns = len(table.header)
    stop = "." if table.caption and not table.title.endswith((".", "!", "?", ":")) else ""
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{latex(f'{table.title}{stop} {table.caption}'.strip())}}}",
        rf"\label{{tab:{re.sub('[^a-zA-Z0-9:-]', '-', table.id)}}}",
        rf"\begin{{tabular}}{{l{'c' * (columns - 1)}}}",
        r"\toprule",
        " & ".join(rf"\textbf{{{latex(name)}}}" if name else "" for name in table.header) + r" \\",
        r"\midrule",
    ]
    grouped = False
    for number, row in enumerate(table.rows):
        if len(row) == 1:
            lines += [r"\midrule"] if grouped else []
            grouped = True
            lines.append(rf"\multicolumn{{{columns}}}{{l}}{{\textit{{{latex(row[0].text)}}}}} \\")
            continue
        if number == table.rule:
            lines.append(r"\midrule")
        indent = r"\quad " if grouped else ""
        shown = [rf"\textbf{{{latex(cell.text)}}}" if cell.best else latex(cell.text) for cell in row]
        # After a line break, LaTeX would read [ and * as its arguments.
        guard = "{}" if not indent and shown[0][:1] in ("[", "*") else ""
        lines.append(indent + guard + " & ".join(shown) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join(lines)


def to_html(table: Table, label: str = "") -> str:
    """Return a table that sorts by the column whose heading is clicked; its label, by default its title, is its own."""
    head = "".join(
        f'<th scope="col"{"" if n else " class=first"}><button type="button">{safe(name) or "&nbsp;"}</button></th>'
        for n, name in enumerate(table.header)
    )
    body = "".join(_html_row(table, number, row) for number, row in enumerate(table.rows))
    many = " many very" if len(table.header) > 13 else " many" if len(table.header) > 8 else ""
    many += " tight" if len(table.header) > 5 else ""
    plain = " plain" if any(cell.wraps for row in table.rows for cell in row) and len(table.header) == 2 else ""
    return (
        f'<div class="wide{plain}" tabindex="0" role="region" aria-label="{safe(label or table.title)}">'
        f'<table class="sortable{many}">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _html_row(table: Table, number: int, row: Sequence[Cell]) -> str:
    if len(row) == 1:
        return f'<tr class="group"><th colspan="{len(table.header)}">{safe(row[0].text)}</th></tr>'
    slot = table.slots[number] if number < len(table.slots) else None
    own = [] if slot is None else [f"run{slot}"]
    below = table.details[number] if number < len(table.details) else ()
    classes = [*(["rule"] if number == table.rule else []), *own, *(["folds"] if below else [])]
    shown = "".join(_html_cell(cell, None if column else slot) for column, cell in enumerate(row))
    if below:
        button = f'<button type="button" class="fold" aria-expanded="false">{len(below)} seeds</button></td>'
        shown = shown.replace("</td>", button, 1)
    inner = "".join(
        f'<tr class="{" ".join(["sub", *own])}" hidden>{"".join(_html_cell(cell, None) for cell in cells)}</tr>'
        for cells in below
    )
    return f"<tr{_class(classes)}>{shown}</tr>{inner}"


def _html_cell(cell: Cell, slot: int | None) -> str:
    value = "" if cell.value is None or not math.isfinite(cell.value) else f' data-v="{cell.value!r}"'
    attribute = _class([*(["best"] if cell.best else []), *(["text"] if cell.wraps else [])])
    mark = "" if slot is None else f'<i class="{dot(slot)}"></i>'
    return f"<td{attribute}{value}>{mark}<bdi>{soft_intervals(cell.text)}</bdi></td>"


def _class(names: Sequence[str]) -> str:
    return f' class="{" ".join(names)}"' if names else ""


_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"{\char34}", "−": "$-$", "±": r"$\pm$", "×": r"$\times$", "→": r"$\rightarrow$",
    "ρ": r"$\rho$", "λ": r"$\lambda$", "β": r"$\beta$", "τ": r"$\tau$", "≤": r"$\leq$", "≥": r"$\geq$", "–": "--",
    "…": r"\ldots{}", "\n": " ", "\t": " ", "\u00a0": "~",
}  # fmt: skip


def latex(text: str) -> str:
    """Escape all LaTeX commands: run names hold underscores, model output anything."""
    return "".join(_LATEX.get(character, character) for character in printable(text))


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|~#&$])", r"\\\1", printable(text)).replace("\n", " ")


def _pipes(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"
