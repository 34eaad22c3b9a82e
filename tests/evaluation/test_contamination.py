"""Publication of problems against the end of a model's training data."""

import pytest

from opasd.errors import ConfigError
from opasd.evaluation.benchmarks import packaged
from opasd.evaluation.contamination import contamination_notes, cutoff_of


def test_known_models_are_found_by_the_longest_name():
    assert cutoff_of("meta-llama/Llama-3.1-8B-Instruct") == ("2023-12", True)
    assert cutoff_of("/models/Qwen3-1.7B/") == ("2025-04-29", False)
    assert cutoff_of("Qwen/Qwen3-4B-Instruct-2507") == ("2025-08-06", False)
    assert cutoff_of("Qwen/Qwen3-30B-A3B-Instruct-2507") == ("2025-07-30", False)
    assert cutoff_of("google/gemma-3n-E4B-it") == ("2024-06", True)
    assert cutoff_of("someone/else") is None
    assert cutoff_of("someone/else", "2024-01") == ("2024-01", True)


def test_a_later_model_does_not_get_the_date_of_its_namesake():
    later = ("Qwen/Qwen3.5-4B", "Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen/Qwen2.5-VL-7B-Instruct", "google/gemma-33")
    assert [cutoff_of(name) for name in later] == [None] * len(later)


def test_notes_name_what_was_public_before():
    entries = [packaged()[name] for name in ("aime24", "aime25", "aime26", "lab")]
    (note,) = contamination_notes(["Qwen/Qwen3-4B", "lab"], entries)
    assert "aime24 (2024-02-07), aime25" in note
    assert "aime26" not in note
    assert contamination_notes(["Llama-3.2-1B"], entries) == []
    (note,) = contamination_notes(["lab"], entries, "2024-02")  # a month means its end
    assert note.endswith("aime24 (2024-02-07)")


@pytest.mark.parametrize("date", ["yesterday", "2025-2", "01.02.2025", "2025-02-01T00:00"])
def test_a_cut_off_that_is_no_date_is_refused(date):
    with pytest.raises(ConfigError, match=r"--cutoff: got .*; give a day, a month or a year, such as 2025-02-13"):
        cutoff_of("lab", date)
