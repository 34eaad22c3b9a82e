"""Epistemic markers: the ten words of the paper, whole, in any case."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.analysis.markers import (
    MARKERS,
    MarkerCounts,
    change_from,
    count_markers,
    density,
    density_by_marker,
)


def test_the_ten_of_the_paper():
    """Appendix on epistemic dynamics, in its order."""
    paper = "wait, hmm, perhaps, maybe, actually, alternatively, seems, might, likely, and check"
    assert paper.replace("and ", "").split(", ") == list(MARKERS)
    assert count_markers(paper) == dict.fromkeys(MARKERS, 1)


@pytest.mark.parametrize("marker", MARKERS)
@pytest.mark.parametrize(
    "form", ["{}", "{},", "({})", "…{}…", "-{}-", "*{}*", "{}'s", "\n{}\n", "数 {} 数", "\u00a0{}."]
)
def test_whole_words_in_any_case(marker, form):
    for word in (marker, marker.upper(), marker.title()):
        assert count_markers(form.format(word)) == {marker: 1}


@pytest.mark.parametrize(
    "text",
    ["waiting", "await", "waits", "checked", "checks", "recheck", "mighty", "unlikely", "likelyhood", "hmmm", "seem",
     "actual", "alternative", "wait_", "_wait", "wait1", "2check", "éwait", "waité", "数check", "checkß", ""],
)  # fmt: skip
def test_other_words_do_not_count(text):
    assert count_markers(text) == {}


def test_every_occurrence_counts():
    assert count_markers("Wait, wait. WAIT... maybe—maybe not; self-check") == {"wait": 3, "maybe": 2, "check": 1}


@given(st.text(), st.lists(st.sampled_from(MARKERS)))
def test_counts_are_of_markers_only_and_add_up(noise, words):
    """Any case folds onto the ten, letters such as ſ and the Kelvin sign included."""
    counts = count_markers(f"{noise} {' '.join(words)}")
    assert set(counts) <= set(MARKERS)
    before = count_markers(noise)
    assert all(counts[marker] == before[marker] + words.count(marker) for marker in MARKERS)
    assert count_markers("ſeems checK") == {"seems": 1, "check": 1}


responses = st.lists(
    st.builds(
        MarkerCounts,
        st.dictionaries(st.sampled_from(MARKERS), st.integers(0, 5)),
        st.integers(0, 500),
        st.sampled_from([True, False, None]),
    ),
    max_size=20,
)


@given(responses)
def test_densities_are_pooled_and_add_up(responses):
    tokens = sum(response.tokens for response in responses)
    if tokens == 0:
        assert density(responses) is None
        return
    expected = 1000 * sum(sum(response.markers.values()) for response in responses) / tokens
    assert density(responses) == pytest.approx(expected)
    assert sum(density_by_marker(responses).values()) == pytest.approx(expected)


def test_the_change_from_the_base():
    base = [MarkerCounts({"wait": 2}, 100), MarkerCounts({}, 100)] * 15
    after = [MarkerCounts({"wait": 1, "check": 2}, 200), MarkerCounts({"maybe": 1}, 50)]
    assert change_from(base, after) == pytest.approx(1.0)
    assert change_from([MarkerCounts({}, 10)], after) is None
    assert change_from(base[:-2], after) is None, "28 markers in all are too few to divide by"
    assert change_from(base, []) is None


@given(st.text(alphabet="waitWAITcheckCHECK _1-\n", max_size=40))
def test_plain_text_counts_as_any_other(text):
    """A character that is no letter, far away, changes the path and not the counts."""
    assert count_markers(text) == count_markers(text + " …")
