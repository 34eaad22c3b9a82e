"""What the fuzzers try: each target draws one hostile input, gives it to the real code and says what must hold.

No input may end in a traceback, hang, execute anything, or write outside the folder it was given.
"""

import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from opasd.config import DataConfig, PromptConfig, RunConfig
from opasd.data.problems import Problem
from opasd.data.sets import load_set
from opasd.errors import EngineError, OpasdError
from opasd.grading.verdict import is_correct
from opasd.prompts.alignment import align
from opasd.prompts.pairs import PromptBuilder
from opasd.recipes.checking import leaves
from opasd.recipes.reading import write_yaml
from opasd.rollout.openai import read_answer
from opasd.rollout.vllm.http import Client, Refused, Unavailable
from opasd.rollout.vllm.server import read_completion, read_models
from tests.commands import opasd
from tests.faults.recipe import write_recipe
from tests.training import TOKENIZER

Draw = Callable[[st.SearchStrategy[Any]], Any]

DEEP = "[" * 3000
MARK = "<img src=x onerror=alert(1)>"
NUMBERS = st.sampled_from([0, -1, 1, 2, 1e300, -1e300, 1e-300, float("nan"), float("inf"), 10**9, 10**30, 2**63, True])
TEXTS = st.sampled_from(
    ["", " ", "null", "true", "~", "~nouser/x", "../../x", "/dev/null", "/dev/full", "a\0b", "\ud800", "x" * 5000, DEEP,
     "{question}", "{0.__class__}", "{{", "}", "%s", "$(touch executed)", "`touch executed`", "http://h:99999999",
     "__import__('os').system('touch executed')", "!!python/object:os.system", "lab", "base", "-", "--", "1e5", "٣",
     MARK, "</script><script>alert(1)</script>", "\x1b[31m", "\u202e", "<|im_end|>\n<|im_start|>assistant", "\\boxed{"]
)  # fmt: skip
VALUES = st.recursive(
    NUMBERS | TEXTS | st.none() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)
FIELDS = st.sampled_from([".".join(path) for path, _ in leaves(RunConfig)])
KINDS = ("remove", "empty", "cut", "flip", "zeros", "folder", "deep", "list", "number", "text", "link")


def configurations(place: Path, draw: Draw) -> None:
    values: dict[str, Any] = {}
    for name, value in draw(st.dictionaries(FIELDS, VALUES, min_size=1, max_size=4)).items():
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
    _refused_or_done(place, "validate", str(place / "any.yaml"))


def files_for_configurations(place: Path, draw: Draw) -> None:
    texts = st.text(max_size=200).map(lambda text: text.encode(errors="surrogatepass"))
    (place / "any.yaml").write_bytes(draw(st.binary(max_size=200) | texts))
    _refused_or_done(place, "validate", str(place / "any.yaml"))


def flags(place: Path, draw: Draw) -> None:
    command = draw(st.sampled_from(["validate", "plan"]))
    pairs = st.lists(st.tuples(FIELDS, TEXTS | NUMBERS.map(str) | st.text(max_size=8)), min_size=1, max_size=3)
    words = [word for name, value in draw(pairs) for word in (f"--{name.replace('_', '-')}", value)]
    _refused_or_done(place, command, "lab", *words)


def data_files(place: Path, draw: Draw) -> None:
    row = VALUES | st.dictionaries(st.sampled_from(["problem", "solution", "answer"]), VALUES)
    rows, ending = (
        draw(st.lists(row, max_size=4)),
        draw(st.sampled_from(["jsonl", "json", "csv", "parquet", "jsonl.gz"])),
    )
    path = place / f"data.{ending}"
    if draw(st.booleans()):
        text = json.dumps(rows) if ending == "json" else "\n".join(json.dumps(row) for row in rows)
        path.write_text(text, errors="surrogatepass")
    else:
        path.write_bytes(draw(st.binary(max_size=300)))
    with suppress(OpasdError):
        load_set(DataConfig(source=str(path), on_bad_row="skip"), "train")
    path.unlink()


def prompts_and_alignment(place: Path, draw: Draw) -> None:
    """Whatever a problem and a wording hold, the tokens at shared positions are the same."""
    question, solution, answer = draw(st.tuples(*[TEXTS | st.text(max_size=40)] * 3))
    wording = draw(st.dictionaries(st.sampled_from(["student", "teacher", "reference", "instruction", "system"]),
                                   TEXTS | st.text(max_size=20), max_size=2))  # fmt: skip
    try:
        config = PromptConfig.model_validate(wording)
        pair = PromptBuilder(TOKENIZER, config).pair(Problem(question, solution, answer, "x"))
    except (OpasdError, ValueError):
        return
    tokens = draw(st.integers(0, 3))
    shared = align(pair, tokens)
    student, teacher = ([*ids, *range(tokens)] for ids in (pair.student_ids, pair.teacher_ids))
    places = zip(shared.student_shared.tolist(), shared.teacher_shared.tolist(), strict=True)
    assert all(student[s] == teacher[t] for s, t in places)


def answers_to_grade(place: Path, draw: Draw) -> None:
    text, known = draw(st.tuples(TEXTS | st.text(max_size=40), TEXTS | st.text(max_size=20)))
    for answer in (text, f"\\boxed{{{text}}}"):
        assert is_correct(answer, known) in (True, False)
    assert not Path("executed").exists()


def replies_of_servers(place: Path, draw: Draw) -> None:
    """Bytes of any kind as an HTTP reply, and JSON of any kind as its content."""
    body = draw(_REPLIES.map(json.dumps).map(lambda text: text.encode(errors="replace")) | _CHUNKS)
    lines = draw(st.lists(st.sampled_from(_HEADERS), max_size=3))
    status = draw(st.sampled_from([b"HTTP/1.1 200 OK", b"HTTP/1.1 429 x", b"HTTP/1.1 99999 x", b"HTTP/0 200", b"\0"]))
    raw = b"\r\n".join([status, *lines, b"", body]) if draw(st.booleans()) else None
    length = f"Content-Length: {len(body)}".encode()
    raw = raw or b"\r\n".join([b"HTTP/1.1 200 OK", length, b"", body])
    answer: Any = None

    def ask() -> None:
        nonlocal answer
        answer = _ask(raw)

    for read in (
        ask,
        lambda: read_models(answer),
        lambda: read_completion(answer, "m", {"max_tokens": 4, "logprobs": 0}, "url", 9),
        lambda: read_answer(answer, 4),
    ):
        said = ""
        try:
            read()
        except (Unavailable, Refused, EngineError) as error:
            said = str(error)
        assert said.isprintable()


_CHUNKS = st.binary(max_size=60) | st.sampled_from([b"-5\r\nabc", b"-1\r\nabc", b"f" * 16 + b"\r\na", b"2;x\r\n{}\r\n"])
_KEYS = ["choices", "data", "id", "parent", "token_ids", "finish_reason", "logprobs", "model", "message", "content",
         "token_logprobs", "usage", "completion_tokens", "max_model_len", "error"]  # fmt: skip
_REPLIES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.sampled_from(["m", "stop", "length"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner),
    max_leaves=12,
)
_HEADERS = [b"Content-Length: -1", b"Content-Length: 99999999999999999999", b"Content-Length: x",
            b"X: " + b"y" * 70_000,
            b"Transfer-Encoding: chunked", b"Retry-After: 1e999", b"Retry-After: \xff", b": ", b"\x1b[31m: \x07", b"\0",
            b"Content-Encoding: gzip", b"Connection: keep-alive"]  # fmt: skip


def _ask(raw: bytes) -> Any:
    """Return what the client makes of these bytes, which a server sends before it hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(raw)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            return Client(f"http://127.0.0.1:{server.getsockname()[1]}", 30).call("/v1/models")
        finally:
            thread.join(30)


COMMANDS = {
    "report": ["report", "{run}", "--output", "{place}/page"],
    "evaluate": ["evaluate", "{run}", "--benchmarks", "lab", "--problems", "1", "--samples", "1", "--max-new-tokens",
                 "2", "--output", "{place}/evaluation"],
    "merge": ["merge", "{run}", "{place}/merged"],
    "attend": ["attend", "{run}", "--max-new-tokens", "2"],
    "resume": ["train", "--resume", "{run}"],
    "prompt": ["prompt", "{run}"],
    "regrade": ["regrade", "{run}"],
    "leaderboard": ["leaderboard", "{run}"],
}  # fmt: skip


def damaged_run_folders(place: Path, draw: Draw) -> None:
    """Files of a run, damaged: every command refuses it, or finds what is whole and does not go on wrongly."""
    with _copy_of_run(place) as run:
        command = draw(st.sampled_from(sorted(COMMANDS)))
        if command == "resume":  # its last step is to be made again
            shutil.rmtree(run / "final")
            shutil.rmtree(run / "checkpoint-3")
        files = [path for path in sorted(run.rglob("*")) if path.is_file()]
        damaged = draw(st.lists(st.sampled_from(files), min_size=1, max_size=3, unique=True))
        for file in damaged:
            damage(file, draw(st.sampled_from(KINDS)), draw(st.integers(0, 2**30)))
        done = _on_run(place, run, command)
        if command == "resume" and done == 0 and run / "config.yaml" not in damaged:
            weights = "final/adapter_model.safetensors"
            assert (run / weights).read_bytes() == (whole_run() / weights).read_bytes(), "other weights"


def values_in_run_folders(place: Path, draw: Draw) -> None:
    """Files of a run whose JSON has other values: no command fails, and no page carries their markup."""
    with _copy_of_run(place) as run:
        names = ("metrics.jsonl", "samples.jsonl", "environment.json", "data.json", "evaluation/evaluation.json",
                 "evaluation/samples.jsonl", "evaluation/settings.json")  # fmt: skip
        path = run / draw(st.sampled_from([name for name in names if (run / name).is_file()]))
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        number = draw(st.integers(0, len(lines) - 1))
        lines[number] = json.dumps(_changed(json.loads(lines[number]), draw))
        path.unlink()
        path.write_text("\n".join(lines) + "\n")
        _on_run(place, run, draw(st.sampled_from(["report", "report", "attend", "prompt", "regrade", "leaderboard"])))
        for page in (page for page in place.rglob("*.html") if page.is_file()):
            assert MARK not in page.read_text(errors="replace"), page


def _changed(value: Any, draw: Draw) -> Any:
    """Return the value with one part of it, at any depth, replaced."""
    if isinstance(value, dict) and value and draw(st.integers(0, 5)):
        name = draw(st.sampled_from(sorted(value)))
        return {**value, name: _changed(value[name], draw)}
    if isinstance(value, list) and value and draw(st.integers(0, 5)):
        number = draw(st.integers(0, len(value) - 1))
        return [*value[:number], _changed(value[number], draw), *value[number + 1 :]]
    return draw(VALUES)


class _copy_of_run:
    """A copy of a whole run, of links to its files, that is removed at the end."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __enter__(self) -> Path:
        (self.place / "cwd").mkdir(exist_ok=True)
        shutil.copytree(whole_run(), self.place / "run", copy_function=os.link)
        return self.place / "run"

    def __exit__(self, *_: object) -> None:
        for name in ("run", "page", "evaluation", "merged", "cwd"):
            shutil.rmtree(self.place / name, ignore_errors=True)


def _on_run(place: Path, run: Path, command: str) -> int:
    done = opasd(place / "cwd", *(word.format(run=run, place=place) for word in COMMANDS[command]))
    assert done.returncode in (0, 2), (command, done.returncode, done.stderr[-3000:])
    assert "Traceback" not in done.stderr, (command, done.stderr[-3000:])
    assert "\x1b" not in done.stderr.replace("\x1b[1;31m", "").replace("\x1b[0m", ""), command
    written = {path.name for path in place.iterdir()} - {"run", "cwd", "page", "evaluation", "merged"}
    assert not written, (command, written)
    assert not list((place / "cwd").iterdir()), command
    return done.returncode


@cache
def whole_run() -> Path:
    """Return a run of three steps with its evaluation; it is removed when the process ends."""
    import atexit
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="opasd-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_recipe(folder)
    train = ["train", "tiny.yaml", "--name", "run", "--steps", "3", "--train.save-steps", "1"]
    evaluate = ["evaluate", "runs/run", "--benchmarks", "lab", "--problems", "2", "--samples", "1", "--max-new-tokens"]
    for words in (train, [*evaluate, "4", "--output", "runs/run/evaluation"]):
        done = opasd(folder, *words)
        assert done.returncode == 0, done.stderr
    return folder / "runs" / "run"


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


def _refused_or_done(place: Path, *words: str) -> None:
    (place / "cwd").mkdir(exist_ok=True)
    before = list(_files_of(place))
    done = opasd(place / "cwd", *words)
    assert done.returncode in (0, 2), (words, done.stderr[-3000:])
    assert "Traceback" not in done.stderr, words
    assert list(_files_of(place)) == before, words


def _files_of(folder: Path) -> Iterator[str]:
    return (str(path.relative_to(folder)) for path in sorted(folder.rglob("*")))


TARGETS: dict[Callable[[Path, Draw], None], int] = {
    configurations: 25, files_for_configurations: 60, flags: 25, data_files: 80, prompts_and_alignment: 60,
    answers_to_grade: 40, replies_of_servers: 40, damaged_run_folders: 15, values_in_run_folders: 8,
}  # fmt: skip
"""Each target, and how many inputs the short form tries."""
