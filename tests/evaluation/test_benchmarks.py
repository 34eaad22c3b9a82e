"""Benchmarks: the packaged entries, local copies, files of one's own, and what is wrong with them."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opasd.errors import ConfigError, DataError
from opasd.evaluation.benchmarks import DATA_DIR, Benchmark, find_benchmarks, is_local, load, packaged

SHARED = Path(__file__).parents[3] / "shared" / "data"
ROWS = [{"problem": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(1, 4)]
UNPINNED = ("arithmetic", "lookup", "ledger", "lab", "beyondaime")


def write(path: Path, rows=ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_every_benchmark_of_the_paper_and_more_is_pinned():
    entries = packaged()
    assert list(entries) == [
        "aime24", "aime25", "aime26", "hmmt25", "hmmt_nov25", "brumo25", "cmimc25", "beyondaime", "olympiadbench",
        "minerva", "amo", "math500", "gsm8k", "amc23", "arithmetic", "lookup", "ledger", "lab",
    ]  # fmt: skip
    for entry in entries.values():
        assert entry.problems
        assert entry.title
        assert entry.name in UNPINNED or re.fullmatch("[0-9a-f]{40}", entry.revision or "")
        entry.prompts()


def test_names_aliases_and_files():
    assert [entry.name for entry in find_benchmarks(["AIME_2024", "hmmt_feb25", "math-500"])] == [
        "aime24",
        "hmmt25",
        "math500",
    ]
    assert len(find_benchmarks(["aime24", "aime_2024"])) == 1
    with pytest.raises(ConfigError, match="did you mean aime24?"):
        find_benchmarks(["aime42"])
    with pytest.raises(ConfigError, match="a file or folder is given by its path"):
        find_benchmarks(["nowhere/mine.jsonl"])


def test_the_embedded_test_split():
    loaded = load(packaged()["lab"])
    assert len(loaded.problems) == 1200
    assert all(problem.id.startswith("lab-test-") and not problem.solution for problem in loaded.problems)
    assert [p.id for p in load(packaged()["lab"], limit=3).problems] == [p.id for p in loaded.problems[:3]]


@pytest.mark.parametrize("name", ["aime24.jsonl", "AIME_2024.jsonl", "aime_2024/data/train-00000-of-00001.parquet",
                                  "HuggingFaceH4--aime_2024/train.jsonl", "HuggingFaceH4/aime_2024/train.jsonl",
                                  "aime24.csv"])  # fmt: skip
@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_local_copy_wins(tmp_path, monkeypatch, name, by):
    path = tmp_path / "copies" / name
    path.parent.mkdir(parents=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif path.suffix == ".csv":
        path.write_text("problem,answer\n" + "".join(f"{row['problem']},{row['answer']}\n" for row in ROWS))
    else:
        write(path)
    if by == "environment":
        monkeypatch.setenv(DATA_DIR, str(tmp_path / "copies"))
    loaded = load(packaged()["aime24"], tmp_path / "copies" if by == "option" else None)
    assert [(p.id, p.answer) for p in loaded.problems] == [("aime24/1", "2"), ("aime24/2", "4"), ("aime24/3", "6")]
    assert loaded.source.startswith(str(tmp_path))
    assert loaded.revision is None


def test_where_a_copy_lies_changes_nothing(tmp_path):
    first = load(packaged()["aime24"], write(tmp_path / "a" / "aime24.jsonl").parent)
    second = load(packaged()["aime24"], write(tmp_path / "b" / "aime_2024" / "train.jsonl").parents[1])
    changed = load(packaged()["aime24"], write(tmp_path / "c" / "aime24.jsonl", [*ROWS[:2], ROWS[0]]).parent)
    assert first.fingerprint == second.fingerprint != changed.fingerprint
    assert first.problems == second.problems


def test_the_hub_s_form_of_gsm8k(tmp_path):
    rows = [
        {"question": "Two eggs at $9?", "answer": "2 * 9 = <<2*9=18>>18\n#### 18"},
        {"question": "q", "answer": "#### 1,234"},
    ]
    (tmp_path / "gsm8k" / "main").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "gsm8k" / "main" / "test-00000-of-00001.parquet")
    loaded = load(packaged()["gsm8k"], tmp_path)
    assert [problem.answer for problem in loaded.problems] == ["18", "1,234"]
    plain = load(packaged()["gsm8k"], write(tmp_path / "plain" / "gsm8k_test.jsonl").parent)
    assert [problem.answer for problem in plain.problems] == ["2", "4", "6"]


def test_files_of_one_s_own(tmp_path):
    (entry,) = find_benchmarks([str(write(tmp_path / "mine.jsonl"))])
    loaded = load(entry)
    assert (loaded.name, loaded.entry.kind, len(loaded.problems)) == ("mine", "integer", 3)
    questions = [{"question": "q", "answer": "\\frac{1}{2}"}]
    (entry,) = find_benchmarks([str(write(tmp_path / "folder" / "test.jsonl", questions).parent)])
    loaded = load(entry)
    assert (loaded.name, loaded.entry.kind, loaded.problems[0].question) == ("folder", "expression", "q")


def test_entries_of_one_s_own(tmp_path):
    write(tmp_path / "rows.jsonl", [{"frage": "Was?", "antwort": "B"}])
    (tmp_path / "mine.yaml").write_text(
        "quiz: {source: rows.jsonl, question: frage, answer: antwort, kind: choice, prompt: '{question} Letter?'}\n"
    )
    (entry,) = find_benchmarks([str(tmp_path / "mine.yaml")])
    loaded = load(entry)
    assert (loaded.entry.kind, loaded.problems[0].answer, loaded.problems[0].id) == ("choice", "B", "quiz/1")
    assert loaded.entry.prompts().student == "{question} Letter?"


@pytest.mark.parametrize("answer", ["1", "12", "Cat", "A or B", "x = 2"])
def test_a_choice_without_a_letter_is_told(tmp_path, answer):
    write(tmp_path / "rows.jsonl", [{"problem": "p", "answer": "(B)"}, {"problem": "q", "answer": answer}])
    (tmp_path / "mine.yaml").write_text("quiz: {source: rows.jsonl, kind: choice}\n")
    with pytest.raises(DataError, match=rf"rows.jsonl.*2: the answer is '{answer}', not an option's letter; set kind"):
        load(find_benchmarks([str(tmp_path / "mine.yaml")])[0])


def test_whole_numbers_with_a_point_are_integers(tmp_path):
    rows = [{"question": "q", "answer": answer} for answer in ("27.0", 36.0, "1,234.00", "-5.")]
    loaded = load(packaged()["amc23"], write(tmp_path / "amc23.jsonl", rows).parent)
    assert [problem.answer for problem in loaded.problems] == ["27", "36", "1,234", "-5"]
    for answer in ("27.5", "27.01", "."):
        with pytest.raises(DataError, match=f"the answer is '{answer}', not an integer"):
            load(packaged()["amc23"], write(tmp_path / "amc23.jsonl", [{"question": "q", "answer": answer}]).parent)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("quiz: 5", "give an entry's fields"),
        ("quiz: {sorce: x}", r"quiz:\s+source: .*\s+sorce: unknown key"),
        ("quiz: {source: x, kynd: choice}", "did you mean kind?"),
        ("quiz: {source: x, kind: poem}", r"quiz:\s+kind"),
        ("quiz: {source: x, answer_pattern: '('}", r"quiz:\s+answer_pattern: got .*, which is no regular expression"),
        ("quiz: {source: x, answer_pattern: 'x'}", r"quiz:\s+answer_pattern: got .*, which has no group"),
        ("quiz: {source: x, prompt: Solve it}", "mine.yaml: quiz: prompt must have {question} once"),
        ("quiz: {source: x, prompt: '{question} {x}'}", "mine.yaml: quiz: prompt "),
        ("", "mine.yaml has no entries"),
    ],
)
def test_wrong_entries_are_refused(tmp_path, text, words):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        find_benchmarks([str(tmp_path / "mine.yaml")])


def test_a_file_of_trl_with_answers_is_a_benchmark(tmp_path):
    path = write(tmp_path / "trl.jsonl", [{"prompt": "1 + 1?", "privileged_context": "It is 2.", "answer": "2"}])
    (problem,) = load(find_benchmarks([str(path)])[0]).problems
    assert (problem.question, problem.solution, problem.answer) == ("1 + 1?", "", "2")


def test_wrong_rows_are_told(tmp_path):
    with pytest.raises(DataError, match='no column for the question; there is "q", "answer"'):
        load(find_benchmarks([str(write(tmp_path / "a.jsonl", [{"q": "x", "answer": "1"}]))])[0])
    with pytest.raises(DataError, match="a benchmark needs one in every row"):
        load(find_benchmarks([str(write(tmp_path / "b.jsonl", [ROWS[0], {"problem": "x", "answer": None}]))])[0])
    for name, rows in [("d", [ROWS[0], {"x": 1}]), ("e", []), ("f", [{"problem": "x", "answer": [1]}])]:
        with pytest.raises(DataError, match=rf"{name}.jsonl") as error:
            load(find_benchmarks([str(write(tmp_path / f"{name}.jsonl", rows))])[0])
        assert "data." not in str(error.value)  # no setting of this command
    with pytest.raises(DataError, match="not an integer"):
        load(packaged()["aime24"], write(tmp_path / "c" / "aime24.jsonl", [{"problem": "x", "answer": "1/2"}]).parent)
    with pytest.raises(ConfigError, match="no folder"):
        load(packaged()["aime24"], tmp_path / "absent")
    with pytest.raises(ConfigError, match='two benchmarks are called "mine"'):
        find_benchmarks([str(write(tmp_path / "x" / "mine.jsonl")), str(write(tmp_path / "y" / "mine.jsonl"))])


def test_an_answer_pattern_must_match_with_its_group(tmp_path):
    write(tmp_path / "rows.jsonl", [{"problem": "p", "answer": "#### 4"}, {"problem": "q", "answer": "no ANS"}])
    (tmp_path / "mine.yaml").write_text("quiz: {source: rows.jsonl, answer_pattern: '#### (\\S+)|ANS'}\n")
    with pytest.raises(DataError, match=r"rows.jsonl.*2: .* has no answer \(answer_pattern '#### .*ANS'\)"):
        load(find_benchmarks([str(tmp_path / "mine.yaml")])[0])


def test_a_missing_local_copy_goes_to_the_hub_at_the_pinned_commit(tmp_path, monkeypatch):
    requests = []

    def stream(name, config, origin):
        requests.append((name, config.subset, config.split, config.revision))
        origin.revision = config.revision
        yield from ((name, n, row) for n, row in enumerate([{"question": "q", "answer": "#### 5"}], 1))

    monkeypatch.setattr("opasd.data.sources.hub_rows", stream)
    loaded = load(packaged()["gsm8k"], tmp_path)
    assert requests == [("openai/gsm8k", "main", "test", packaged()["gsm8k"].revision)]
    assert (loaded.revision, loaded.problems[0].answer) == (packaged()["gsm8k"].revision, "5")


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs copies of the benchmarks")
@pytest.mark.parametrize("name", [name for name in packaged() if name != "lab"])
def test_real_copies(name):
    if not is_local(packaged()[name], SHARED):
        pytest.skip("no copy")
    loaded = load(packaged()[name], SHARED)
    assert len(loaded.problems) == loaded.entry.problems
    assert loaded.entry.kind == packaged()[name].kind


@pytest.mark.parametrize(
    ("name", "folder", "row"),
    [
        (
            "BRUMO25",
            "brumo_2025/data",
            {"problem_idx": 1, "problem": "q", "answer": "\\frac{1}{2}"},
        ),
        ("cmimc25", "MathArena--cmimc_2025/data", {"problem_idx": 1, "problem": "q", "answer": "x+1"}),
        ("hmmt_nov25", "hmmt_nov_2025/data", {"problem": "q", "answer": "\\sqrt{2}"}),
        ("beyondaime", "BeyondAIME/data", {"problem": "q", "answer": 4}),
        (
            "olympiadbench",
            "OlympiadBench/OE_TO_maths_en_COMP",
            {"question": "q", "final_answer": ["2", "3"]},
        ),
        ("minerva", "minervamath", {"question": "q", "answer": "4.5e33"}),
        (
            "amo-bench",
            "AMO-Bench/data",
            {"prompt": "q", "solution": "s", "answer": "\\boxed{3}"},
        ),
    ],
)
def test_folders_of_the_hubs_form(tmp_path, name, folder, row):
    """A folder as `hf download` leaves it, in parquet."""
    (entry,) = find_benchmarks([name])
    (tmp_path / folder).mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / folder / f"{entry.split}-00000-of-00001.parquet")
    loaded = load(entry, tmp_path)
    (problem,) = loaded.problems
    assert problem.question == "q"
    assert problem.answer == ("2, 3" if name == "olympiadbench" else str(row["answer"]))
    assert loaded.describe()["released"] == entry.released


def test_an_entry_is_strict():
    with pytest.raises(ValueError):
        Benchmark(name="x", source="y", problems=0)


def test_known_answers_are_tried_against_themselves(tmp_path):
    """What no answer could match is named; boxes, sets, tuples and lists are no such thing."""
    answers = [
        r"\boxed{\{1,2,3\}}",
        r"\boxed{(1,2)}",
        r"\boxed{1, 2}",
        r"x = \boxed{5}",
        "a}b",
        "$$",
        r"\text{}",
        "(1,2]",
    ]
    rows = [{"problem": f"{n}?", "answer": answer} for n, answer in enumerate(answers)]
    loaded = load(Benchmark(name="mine", source=str(write(tmp_path / "mine.jsonl", rows))))
    assert loaded.unmatched == ["mine/5", "mine/6", "mine/7"]


def test_a_tolerance_is_part_of_what_is_asked(tmp_path):
    path = write(tmp_path / "mine.jsonl")
    plain, tolerant = (load(Benchmark(name="mine", source=str(path), tolerance=share)) for share in (None, 0.01))
    assert plain.fingerprint != tolerant.fingerprint
    assert tolerant.describe()["tolerance"] == 0.01
    assert "tolerance" not in plain.describe()
