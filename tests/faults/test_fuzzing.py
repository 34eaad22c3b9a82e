"""Hostile configurations, flags, data files, prompts, answers and run folders: no traceback, no hang, nothing written.

OPASD_FUZZ=N tries N inputs of each kind; unset, a few dozen.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opasd.config import DataConfig, PromptConfig, RunConfig
from opasd.data.problems import Problem
from opasd.data.sets import load_set
from opasd.errors import OpasdError
from opasd.evaluation.targets import resolve
from opasd.grading.verdict import is_correct
from opasd.prompts.alignment import align
from opasd.prompts.pairs import PromptBuilder
from opasd.recipes.checking import leaves
from opasd.recipes.reading import write_yaml
from opasd.run.checkpoints import newest_checkpoint
from opasd.run.folder import RunFolder
from tests.commands import opasd
from tests.training import TOKENIZER, make_trainer

TRIES = int(os.environ.get("OPASD_FUZZ", "0"))


def tries(few: int):
    slow = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=TRIES or few, suppress_health_check=slow, derandomize=not TRIES)


DEEP = "[" * 3000
NUMBERS = st.sampled_from([0, -1, 1, 2, 1e300, -1e300, 1e-300, float("nan"), float("inf"), 10**9, 10**30, 2**63, True])
TEXTS = st.sampled_from(
    ["", " ", "null", "true", "~", "~nouser/x", "../../x", "/dev/null", "/dev/full", "a\0b", "\ud800", "x" * 5000, DEEP,
     "{question}", "{0.__class__}", "{{", "}", "%s", "$(touch executed)", "`touch executed`", "http://h:99999999",
     "__import__('os').system('touch executed')", "!!python/object:os.system", "lab", "base", "-", "--", "1e5", "٣"]
)  # fmt: skip
VALUES = st.recursive(
    NUMBERS | TEXTS | st.none() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)
FIELDS = st.sampled_from([".".join(path) for path, _ in leaves(RunConfig)])


def files_of(folder: Path) -> Iterator[str]:
    return (str(path.relative_to(folder)) for path in sorted(folder.rglob("*")))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "cwd").mkdir()
    return folder


def refused_or_done(place: Path, *words: str) -> None:
    before = list(files_of(place))
    done = opasd(place / "cwd", *words)
    assert done.returncode in (0, 2), (words, done.stderr[-3000:])
    assert "Traceback" not in done.stderr, words
    assert list(files_of(place)) == before, words


@tries(25)
@given(settings=st.dictionaries(FIELDS, VALUES, min_size=1, max_size=4))
def test_configurations(place, settings):
    values: dict = {}
    for name, value in settings.items():
        section = values
        *path, last = name.split(".")
        for part in path:
            section = section.setdefault(part, {})
        section[last] = value
    try:
        text = write_yaml(values).encode(errors="surrogatepass")
    except Exception:  # not every value has a form in YAML
        text = json.dumps(values).encode()
    (place / "any.yaml").write_bytes(text)
    refused_or_done(place, "validate", str(place / "any.yaml"))


@tries(60)
@given(text=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode(errors="surrogatepass")))
def test_files_that_are_no_configuration(place, text):
    (place / "any.yaml").write_bytes(text)
    refused_or_done(place, "validate", str(place / "any.yaml"))


@tries(25)
@given(
    command=st.sampled_from(["validate", "plan"]),
    flags=st.lists(st.tuples(FIELDS, TEXTS | NUMBERS.map(str) | st.text(max_size=8)), min_size=1, max_size=3),
)
def test_flags(place, command, flags):
    words = [word for name, value in flags for word in (f"--{name.replace('_', '-')}", value)]
    refused_or_done(place, command, "lab", *words)


@tries(80)
@given(rows=st.lists(VALUES | st.dictionaries(st.sampled_from(["problem", "solution", "answer"]), VALUES), max_size=4),
       ending=st.sampled_from(["jsonl", "json", "csv", "parquet"]))  # fmt: skip
def test_data_files(place, rows, ending):
    path = place / f"data.{ending}"
    lines = "\n".join(json.dumps(row) for row in rows)
    path.write_text(lines if ending != "json" else json.dumps(rows), errors="surrogatepass")
    with suppress(OpasdError):
        load_set(DataConfig(source=str(path), on_bad_row="skip"), "train")
    path.unlink()


@tries(60)
@given(texts=st.tuples(*[TEXTS | st.text(max_size=40)] * 3))
def test_prompts_and_their_alignment(texts):
    """Whatever a problem holds, the tokens at shared positions are the same."""
    question, solution, answer = texts
    try:
        pair = PromptBuilder(TOKENIZER, PromptConfig()).pair(Problem(question, solution, answer, "x"))
    except OpasdError:
        return
    shared = align(pair, 0)
    places = zip(shared.student_shared.tolist(), shared.teacher_shared.tolist(), strict=True)
    assert all(pair.student_ids[s] == pair.teacher_ids[t] for s, t in places)


@tries(40)
@given(text=TEXTS | st.text(max_size=40), known=TEXTS | st.text(max_size=20))
def test_answers(place, text, known):
    for answer in (text, f"\\boxed{{{text}}}"):
        assert is_correct(answer, known) in (True, False)
    assert not (Path.cwd() / "executed").exists()


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    make_trainer(folder, max_steps=2, save_steps=1, per_device_train_batch_size=1).train()
    return folder


KINDS = ("remove", "empty", "cut", "flip", "zeros", "folder", "deep", "list", "number", "text", "link")


@tries(15)
@given(data=st.data())
def test_run_folders(whole_run, tmp_path_factory, data):
    """Files of a run, damaged: every reader refuses it, or finds what is whole."""
    place = tmp_path_factory.mktemp("damaged")
    run = place / "run"
    shutil.copytree(whole_run, run, copy_function=os.link)
    files = [path for path in sorted(run.rglob("*")) if path.is_file()]
    for file in data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=3, unique=True)):
        damage(file, data.draw(st.sampled_from(KINDS)), data.draw(st.integers(0, 2**30)))
    for read in (RunFolder.open, lambda run: resolve([str(run)]), lambda run: newest_checkpoint(run, ["*"])):
        with suppress(OpasdError):
            read(run)
    (place / "cwd").mkdir()
    done = opasd(place / "cwd", "report", str(run), "--output", str(place / "page"))
    assert done.returncode in (0, 2), done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    shutil.rmtree(place)


def damage(file: Path, kind: str, where: int) -> None:
    content = bytearray(file.read_bytes())
    file.unlink()
    if kind == "folder":
        file.mkdir()
    elif kind == "link":
        file.symlink_to("/nowhere")
    elif kind != "remove":
        if kind == "flip" and content:
            content[where % len(content)] ^= 1 + where % 255
        elif kind == "zeros":
            content[where % (len(content) + 1) :][:4096] = bytes(100)
        elif kind == "cut":
            del content[where % (len(content) + 1) :]
        texts = {"empty": "", "deep": '{"a":' * 5000, "list": "[1, [2]]", "number": "1e999", "text": "\x1b[31m\0x"}
        file.write_bytes(texts[kind].encode() if kind in texts else content)
