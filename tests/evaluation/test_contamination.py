"""Publication of problems against the end of a model's training data."""

from opasd.evaluation.benchmarks import packaged
from opasd.evaluation.contamination import contamination_notes, cutoff_of


def test_known_models_are_found_by_the_longest_name():
    assert cutoff_of("meta-llama/Llama-3.1-8B-Instruct") == ("2023-12", True)
    assert cutoff_of("/models/Qwen3-1.7B/") == ("2025-04-29", False)
    assert cutoff_of("Qwen/Qwen3-4B-Instruct-2507") == ("2025-08-06", False)
    assert cutoff_of("someone/else") is None
    assert cutoff_of("someone/else", "2024-01") == ("2024-01", True)


def test_notes_name_what_was_public_before():
    entries = [packaged()[name] for name in ("aime24", "aime25", "aime26", "lab")]
    (note,) = contamination_notes(["Qwen/Qwen3-4B", "lab"], entries)
    assert "aime24 (2024-02-07), aime25" in note
    assert "aime26" not in note
    assert contamination_notes(["Llama-3.2-1B"], entries) == []
    (note,) = contamination_notes(["lab"], entries, "2024-02")  # a month means its end
    assert note.endswith("aime24 (2024-02-07)")
