"""Tables in every form: the same cells, nothing that a reader's program would obey."""

import csv
import io
import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.report.tables import Cell, Table, latex, to_csv, to_html, to_latex, to_markdown
from opasd.rounding import fixed
from tests.report.made import HOSTILE

GROUPED = Table(
    "t", "Title", ["run", "a_b", "x %"],
    [[Cell("Qwen3_4B")], [Cell("base"), Cell("−1.5", -1.5), Cell("3", 3, True)],
     [Cell("~^\\{}$&#|<>"), Cell("=1+1"), Cell("–")]],
    "50 % of $x$ & more",
)  # fmt: skip


def test_csv_can_be_read_back_with_the_group_as_a_column():
    rows = list(csv.reader(io.StringIO(to_csv(GROUPED))))
    assert rows == [["group", "run", "a_b", "x %"], ["Qwen3_4B", "base", "-1.5", "3"],
                    ["Qwen3_4B", "~^\\{}$&#|<>", "'=1+1", "–"]]  # fmt: skip


@pytest.mark.parametrize("text", ["=1+1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-cmd"])
def test_no_cell_is_a_formula(text):
    assert to_csv(Table("t", "", ["a"], [[Cell("x"), Cell(text)]])).splitlines()[1].startswith(("x,'", "x,\"'"))


def test_markdown():
    assert to_markdown(GROUPED) == (
        "| run | a\\_b | x % |\n|:---|---:|---:|\n| *Qwen3\\_4B* |  |  |\n| base | −1.5 | **3** |\n"
        "| \\~^\\\\{}\\$\\&\\#\\|\\<\\> | =1+1 | – |\n"
    )


def test_latex_escapes_what_run_names_hold():
    assert latex("lab_opsd-50%#1 & ~^\\{x}$") == (
        r"lab\_opsd-50\%\#1 \& \textasciitilde{}\textasciicircum{}\textbackslash{}\{x\}\$"
    )
    text = to_latex(GROUPED)
    assert r"\multicolumn{3}{l}{\textit{Qwen3\_4B}} \\" in text
    assert r"\quad base & $-$1.5 & \textbf{3} \\" in text
    assert r"\caption{Title. 50 \% of \$x\$ \& more}" in text


@given(st.text())
def test_no_latex_character_is_left_with_a_meaning(text):
    rest = re.sub(
        r"\\(textbackslash|textasciitilde|textasciicircum|textless|textgreater|textbar|ldots)\{\}|\{\\char34\}",
        "",
        latex(text),
    )
    rest = re.sub(r"\$(-|\\pm|\\times|\\rightarrow|\\rho|\\lambda|\\beta|\\tau|\\leq|\\geq)\$", "", rest)
    rest = re.sub(r"\\[{}$&#_%]", "", rest)
    assert not re.search(r"[\\{}$&#^_%]", rest)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX here")
def test_latex_compiles(tmp_path):
    document = (
        "\\documentclass{article}\\usepackage{booktabs}\\usepackage[T1]{fontenc}\\begin{document}%s\\end{document}"
    )
    (tmp_path / "t.tex").write_text(document % to_latex(GROUPED))
    subprocess.run(["pdflatex", "-halt-on-error", "t.tex"], cwd=tmp_path, check=True, capture_output=True)


@given(st.text() | st.just(HOSTILE))
def test_html_has_the_same_tags_whatever_the_cells_say(text):
    tags = re.findall(r"<[a-z/]+", to_html(Table("t", "", [text], [[Cell(text)], [Cell(text), Cell(text, 1.0)]])))
    assert tags == re.findall(r"<[a-z/]+", to_html(Table("t", "", ["a"], [[Cell("a")], [Cell("a"), Cell("a", 1.0)]])))


def test_html_carries_the_numbers_that_columns_sort_by():
    text = to_html(GROUPED)
    assert 'data-v="-1.5"' in text
    assert text.count("data-v") == 2


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(29.035, 2, "29.04"), (31.385, 2, "31.39"), (50.8833, 2, "50.88"), (-0.004, 2, "0.00"), (-1.5, 1, "−1.5"),
     (1234567.0, 1, "1,234,567.0"), (None, 2, "–"), (float("nan"), 2, "–"), (1e300, 2, "1e+300")],
)  # fmt: skip
def test_numbers_round_as_people_do(value, digits, text):
    assert fixed(value, digits) == text


@pytest.mark.parametrize("start", ["[", "*"])
def test_a_row_that_begins_with_an_argument_of_the_line_break_is_none(start):
    text = to_latex(Table("t", "", ["a"], [[Cell("x"), Cell("y")], [Cell(f"{start}2em] z"), Cell("y")]]))
    assert f"\\\\\n{{}}{start}2em] z &" in text


def test_quotation_marks_need_no_font_encoding():
    assert latex('"a"') == r"{\char34}a{\char34}"
