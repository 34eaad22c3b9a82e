"""`opasd evaluate --engine openai` against a real server."""

import json

from opasd import cli
from tests.rollout.chat_server import ChatServer, reply


def test_a_server_is_evaluated_and_resumed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [{"problem": "2+2?", "answer": "4"}, {"problem": "2+3?", "answer": "5"}]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["evaluate", "--model", "served/model", "--engine", "openai", "--benchmarks", "sums.jsonl"]
    command += ["--samples", "2", "--max-new-tokens", "32", "--output", "out", "--max-batch", "2"]
    with ChatServer() as server:
        assert cli.main([*command, "--url", server.url]) == 0
        output = capsys.readouterr()
        assert "50.0 [" in output.out
        assert "not guaranteed with this engine: seeds" in output.err
        evaluation = json.loads((tmp_path / "out" / "evaluation.json").read_text())
        assert evaluation["results"][0]["verdicts"]["correct"] == 2
        assert evaluation["results"][0]["tokens"]["mean"] == 7
        assert evaluation["settings"]["server"] == server.url
        assert len(evaluation["not_guaranteed"]) == 6
        assert evaluation["spent"]["total"]["gpu_seconds"] is None
        lines = (tmp_path / "out" / "samples.jsonl").read_text().splitlines(keepends=True)
        (tmp_path / "out" / "samples.jsonl").write_text("".join(lines[:3]))
        server.script.append((200, reply("\\boxed{5}"), {}))
        assert cli.main([*command, "--url", server.url]) == 0
        assert len(server.requests) == 5  # only the missing one
        evaluation = json.loads((tmp_path / "out" / "evaluation.json").read_text())
        assert evaluation["spent"]["total"]["calls"] == 2
        assert evaluation["spent"]["total"]["samples"] == 5
        capsys.readouterr()
        for wrong, words in (
            (["--url", server.url, "--budgets", "8,32"], "no --budgets"),
            ([], "go together"),
            (["--url", server.url, "--dtype", "float32"], "leave them out"),
        ):
            assert cli.main([*command, *wrong]) == 2
            assert words in capsys.readouterr().err
        (tmp_path / "sums.jsonl").write_text("no rows")  # what is wrong with the flags is said before anything is read
        assert cli.main([*command, "--url", server.url, "--url", "http://127.0.0.1:9"]) == 2
        assert "takes one --url" in capsys.readouterr().err


def test_reasoning_that_a_server_returns_holds_no_answer(tmp_path, monkeypatch):
    """Apart (`reasoning_content`, in vLLM `reasoning`) or in the text, finished or cut."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sums.jsonl").write_text('{"problem": "2+2?", "answer": "4"}\n')
    right = "\\boxed{4}"
    replies = [
        reply("", "length", reasoning_content=right),
        reply("", "length", reasoning=right),
        reply(f"<think>{right}", "length"),
        reply("I do not know.", reasoning=right),
        reply(right, reasoning="\\boxed{9}"),
    ]
    command = ["evaluate", "--model", "m", "--engine", "openai", "--benchmarks", "sums.jsonl", "--output", "out"]
    with ChatServer(*((200, answer, {}) for answer in replies)) as server:
        assert cli.main([*command, "--samples", "5", "--max-batch", "1", "--url", server.url]) == 0
    samples = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert [sample["verdict"] for sample in samples] == ["truncated", "truncated", "truncated", "no_answer", "correct"]
    assert [sample["text"].startswith("<think>\\boxed{") for sample in samples] == [True] * 5
    assert cli.main(["regrade", "out", "--json"]) == 0
    assert not (tmp_path / "out" / "regraded.new.jsonl").read_text()
