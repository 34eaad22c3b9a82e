"""Names of runs are safe, stable and distinct; texts of a table are short."""

import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from opasd.sweep.names import shortened_texts
from opasd.sweep.spec import SweepFile, expand
from tests.sweep.sweeps import names


def test_fields_with_the_same_last_name_are_told_apart_and_odd_values_keep_names_safe() -> None:
    run_names = names("recipe: lab\ngrid: {objective.token.divergence: [jsd], objective.attention.divergence: [jsd]}")
    assert run_names == ["token.divergence-jsd-attention.divergence-jsd"]
    unusual = names('recipe: lab\ngrid: {model.name_or_path: [a/b, a_b, "a b", "a\\nb", ÄÖ, aB, Ab]}')
    assert len({name.casefold() for name in unusual}) == 7
    assert unusual[1] == "name_or_path-a_b"
    assert all(re.fullmatch(r"[\w.+=@-]+", name, re.ASCII) for name in unusual)


@given(st.lists(st.text(min_size=1, max_size=300), min_size=1, max_size=5, unique=True))
@settings(max_examples=20, deadline=None)
def test_names_are_stable_safe_and_never_collide(values: list[str]) -> None:
    file = SweepFile(recipe="lab", grid={"model.name_or_path": list(values)})
    run_names = [run.name for run in expand(file, Path()).runs]
    assert len({name.casefold() for name in run_names}) == len(values)
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+=@-]*", name) and len(name) < 160 for name in run_names)
    assert run_names == [run.name for run in expand(file, Path()).runs]


def test_values_that_look_alike_have_names_of_their_own() -> None:
    run_names = names('recipe: lab\ngrid: {prompts.template_options.x: [true, "true", 1, "1", "one"]}')
    assert (run_names[0], run_names[2], run_names[4]) == ("x-true", "x-1", "x-one")
    assert len(set(run_names)) == 5
    assert len(set(names('recipe: lab\ngrid: {train.save_total_limit: [null, 1], data.revision: [null, "1"]}'))) == 4


@given(st.lists(st.text("ab \n", max_size=90), min_size=2, max_size=4))
def test_shortened_texts_are_single_lines_and_short(texts: list[str]) -> None:
    cells = shortened_texts(texts)
    if all(len(text.split()) < 2 or ("\n" not in text and len(text) <= 40) for text in texts):
        assert cells == texts
    else:
        assert all("\n" not in cell and len(cell) <= 40 for cell in cells)
        words = [text.split() for text in texts]
        for cell, text_words in zip(cells, words, strict=True):
            if not cell.endswith("…"):
                assert (
                    text_words[len(text_words) - len(cell.removeprefix("… ").split()) :]
                    == cell.removeprefix("… ").split()
                )


def test_paths_stay_whole() -> None:
    paths = [f"/a/folder/of/models/that/has/a/rather/long/name/{model}" for model in ("one", "other")]
    assert shortened_texts(paths) == paths
