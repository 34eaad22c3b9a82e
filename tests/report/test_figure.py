"""A figure's data as CSV."""

from opasd.report.figure import Figure, Series, to_csv


def test_data_of_a_figure():
    figure = Figure("f", "t", "bar", "part", "y", [Series("a", 0, [(1, 2.5)], [2.0], [3.0])], categories=("x", "y"))
    assert to_csv(figure) == "series,part,y,low,high\na,y,2.5,2.0,3.0\n"


def test_raw_and_smoothed_values_are_told_apart_and_names_are_no_formulas():
    figure = Figure(
        "f", "t", "line", "step", "y", [Series("=a (raw)", 0, [(1, 2.0)], faint=True), Series("=a", 0, [(1, 3.0)])]
    )
    assert to_csv(figure).splitlines() == ["series,step,y", "'=a (raw),1,2.0", "'=a,1,3.0"]
