"""The judge: asked only about what no rule settles, its word marked and counted apart. A small server, or a model."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from opasd.cli import main
from opasd.config import RolloutConfig, ServersConfig
from opasd.errors import ConfigError
from opasd.evaluation import folder as folders
from opasd.evaluation import judging
from opasd.evaluation.judging import REPLIES, ModelJudge, is_unsettled, open_judge, says_same
from opasd.evaluation.samples import Sample
from opasd.grading.words import is_prose
from tests.evaluation.lab import run, short_evaluation


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    """It says `same` of answers with the word powers, `different` of others, nothing clear of those with maybe."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send({"data": [{"id": "small-judge"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            instance.keys.add(self.headers["Authorization"])
            if instance.failures and (status := instance.failures.pop()):
                self._send({"error": "busy"}, status)
                return
            question = body["messages"][0]["content"]
            instance.questions.append(question)
            answer = question.partition("Answer to compare: ")[2].partition("\n")[0]
            known = question.partition("Known answer: ")[2].partition("\n")[0]
            same = "powers" in answer or answer == known
            word = "Who knows?" if "maybe" in answer else rf"So \boxed{{{'same' if same else 'different'}}}."
            self._send({"choices": [{"message": {"content": word}, "finish_reason": "stop"}]})

        def _send(self, about: object, status: int = 200) -> None:
            content = json.dumps(about).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    instance = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    instance.questions, instance.failures, instance.keys = [], [], set()
    thread = threading.Thread(target=instance.serve_forever, daemon=True)
    thread.start()
    yield instance
    instance.shutdown()
    instance.server_close()
    thread.join()


@pytest.fixture(scope="module")
def graded(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("judging") / "evaluation"
    run(short_evaluation(problems=3), path)
    return path


@pytest.fixture
def path(graded, tmp_path) -> Path:
    """Three problems of two samples; the first has a known answer in prose."""
    path = tmp_path / "evaluation"
    path.mkdir()
    (path / folders.SETTINGS).write_bytes((graded / folders.SETTINGS).read_bytes())
    problems = [json.loads(line) for line in (graded / folders.PROBLEMS).read_text().splitlines()]
    problems[0]["answer"] = r"\boxed{\text{all powers of two}}"
    (path / folders.PROBLEMS).write_text("".join(f"{json.dumps(row)}\n" for row in problems))
    rows = [json.loads(line) for line in (graded / folders.SAMPLES).read_text().splitlines()]
    golds = {row["problem"]: row["answer"] for row in problems}
    texts = [r"\text{the powers of } 2", r"\text{maybe nothing}", golds[rows[2]["problem"]], "-1", "-2", "no box"]
    for row, text in zip(rows, texts, strict=True):
        row["verdict"], row["text"] = "wrong", text if text == "no box" else rf"\boxed{{{text}}}"
    (path / folders.SAMPLES).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert main(["regrade", str(path), "--write", "--json"]) == 0
    return path


def test_its_word_is_marked_and_counted_apart(path, server, capfd):
    samples = (path / folders.SAMPLES).read_bytes()
    url = f"http://127.0.0.1:{server.server_port}"
    assert main(["regrade", str(path), "--judge", url]) == 0
    printed = capfd.readouterr().out
    assert "asked about 2 samples that no rule settles: 1 same, 0 different, 1 unclear" in printed
    assert "agrees with the rules on 3 of 3 answers" in printed
    about = json.loads((path / "evaluation.regraded.json").read_text())
    (trial,) = about["judge"]["trials"]
    assert about["judge"]["name"] == "small-judge"
    assert (trial["asked"], trial["same"], trial["different"], trial["unclear"]) == (2, 1, 0, 1)
    assert about["results"][0]["avg"]["mean"] == pytest.approx(1 / 6)
    assert trial["avg"]["mean"] == pytest.approx(2 / 6)
    assert about["judge"]["agreement"] == {
        "asked": 3, "same_verdict": 3, "only_rules_accept": 0, "only_judge_accepts": 0, "unclear": 0
    }  # fmt: skip
    assert (path / folders.SAMPLES).read_bytes() == samples
    replies = [json.loads(line) for line in (path / REPLIES).read_text().splitlines()]
    assert [reply["same"] for reply in replies[:2]] == [True, None]
    assert len(server.questions) == 5
    assert sum("Known answer: \\text{all powers of two}\n" in question for question in server.questions) == 2
    assert main(["regrade", str(path), "--judge", url]) == 0
    assert len(server.questions) == 5  # what it has said is kept


def test_a_busy_server_is_asked_again_and_a_dead_one_loses_no_reply(path, server, capfd, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setattr(judging, "_SERVERS", ServersConfig(retries=1, backoff=0.01))
    monkeypatch.setattr(judging, "_AT_ONCE", 1)
    command = ["regrade", str(path), "--judge", f"http://127.0.0.1:{server.server_port}"]
    server.failures = [503, 500, None, 429]  # from the end
    assert main(command) == 2
    assert "no answer after 2 tries" in capfd.readouterr().err
    assert len((path / REPLIES).read_text().splitlines()) == len(server.questions) == 1
    assert main(command) == 0
    assert "1 same, 0 different, 1 unclear" in capfd.readouterr().out
    assert len(server.questions) == 5
    assert server.keys == {"Bearer secret"}


def test_a_model_is_asked_through_its_engine(path, capfd):
    """The embedded model says nothing clear; it is asked all the same."""
    assert main(["regrade", str(path), "--judge", "lab"]) == 0
    assert "judge lab" in capfd.readouterr().out
    replies = [json.loads(line) for line in (path / REPLIES).read_text().splitlines()]
    assert all(isinstance(reply["reply"], str) and reply["reply"] for reply in replies)
    judge = open_judge("lab", RolloutConfig(max_batch=4))
    assert isinstance(judge, ModelJudge)
    assert judge.ask(["x " * 5000, "Are they the same?"])[0] == ""


def test_evaluate_asks_it_at_the_end(tmp_path, server, capfd):
    url = f"http://127.0.0.1:{server.server_port}"
    command = ["evaluate", "lab", "--problems", "2", "--max-new-tokens", "40", "--output", str(tmp_path / "e")]
    assert main([*command, "--judge", url, "--json"]) == 0
    results = json.loads(capfd.readouterr().out)
    assert results["judge"]["trials"][0]["asked"] == 0
    assert results["judge"]["agreement"]["asked"] == len(server.questions)
    assert json.loads((tmp_path / "e" / folders.RESULTS).read_text()) == results


def test_an_address_without_a_server_is_a_mistake():
    with pytest.raises(ConfigError, match="gives no list of models"):
        open_judge("http://127.0.0.1:9", RolloutConfig())


@pytest.mark.parametrize(
    ("judge", "words"),
    [
        ("http://127.0.0.1:9", "gives no list of models"),
        ("nowhere", "--judge: no model, adapter or run 'nowhere'"),
        ("", "--judge"),
        ("adapter", "is an adapter; give a whole model"),
    ],
)
def test_a_judge_that_is_not_there_is_found_before_anything_is_drawn(tmp_path, monkeypatch, judge, words, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": "a/b", "peft_type": "LORA"}')
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(b"")
    assert main(["evaluate", "lab", "--problems", "1", "--judge", judge, "--output", "e"]) == 2
    assert words in capfd.readouterr().err
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize(
    "address",
    ["http://u:abc@localhost:1", "http://localhost:1/?key=abc", "http://localhost:99999999", "http://me:1[abc]@host"],
)
def test_an_address_with_a_secret_is_refused_before_anything_is_asked(tmp_path, address, capfd):
    output = ["--output", str(tmp_path / "e")]
    assert main(["evaluate", "lab", "--problems", "1", "--judge", address, *output]) == 2
    assert not (tmp_path / "e").exists()
    assert "abc" not in capfd.readouterr().err
    with pytest.raises(ConfigError, match="--judge"):
        open_judge(address, RolloutConfig())


@pytest.mark.parametrize(
    ("reply", "same"),
    [(r"\boxed{same}", True), (r"<think>\boxed{different}</think>\boxed{\text{Same}}", True), ("different", False),
     (r"They are \boxed{different}.", False), (r"\boxed{5}", None), ("", None), ("the same or different", None),
     ("<think>They differ, no.</think>same", True)],
)  # fmt: skip
def test_replies(reply, same):
    assert says_same(reply) is same


@pytest.mark.parametrize(
    ("gold", "answer", "verdict", "unsettled"),
    [
        (r"\text{all powers of two}", r"2^n", "wrong", True),
        ("5", r"\text{there is no such number}", "wrong", True),
        ("5", r"6\text{ cm}", "wrong", False),
        (r"\sin x + \cos y", r"\tan x", "wrong", False),
        ("5", "6", "wrong", False),
        ("5", "6", "grader_failed", True),
        (r"\text{all powers of two}", r"\text{powers of two}", "correct", False),
        (r"\text{all powers of two}", None, "no_answer", False),
    ],
)
def test_what_no_rule_settles(gold, answer, verdict, unsettled):
    sample = Sample("t", "b", "p", 0, 0, (1,), "", "stop", verdict, answer, {})
    assert is_unsettled(sample, gold) is unsettled


def test_prose():
    assert is_prose(r"\text{all primes } p \equiv 1 \text{ mod } 4 \text{ except } 5")
    assert not is_prose(r"\frac{\sqrt{3}}{2} \text{ cm}^2")
    assert not is_prose(r"x = 5 \text{ or } y = 3")
