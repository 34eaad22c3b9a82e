"""A whole evaluation on a machine that has ten processes too many: the verdicts of an idle one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from opasd.grading.verdict import quick_verdict
from tests.faults.common import QUICK, Result
from tests.grading.pairs import BOXED, box
from tests.processes import run
from tests.rollout.chat_server import ChatServer, reply

PROBLEMS, SAMPLES, BUSY = (4, 3, 4) if QUICK else (30, 12, 10)
NEVER_ENDS = "9^{9^{9^{9}}}"
"""An answer whose comparison the limit ends."""


def answers_by_gold() -> dict[str, list[str]]:
    """Return known answers with the answers that people gave, those first which need the most algebra."""
    found: dict[str, list[str]] = {}
    for _, gold, answer, _ in BOXED:
        found.setdefault(gold, []).append(answer)
    hard = {gold: sum(quick_verdict(answer, gold) is None for answer in found[gold]) for gold in found}
    golds = sorted(found.keys() - {"7"}, key=lambda gold: (-hard[gold], gold))[: PROBLEMS - 1]
    return {gold: found[gold] for gold in golds} | {"7": [NEVER_ENDS, "7", "8"]}


class Answering(ChatServer):
    """Gives one of a problem's answers, by the seed of the request."""

    def __init__(self, answers: dict[str, list[str]]) -> None:
        super().__init__()
        self.answers = list(answers.values())

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        number = int(body["messages"][0]["content"].partition("number ")[2].partition(".")[0])
        return reply(box(self.answers[number][body["seed"] % len(self.answers[number])]))


def verdicts(place: Path, name: str, url: str) -> dict[tuple[str, int], str]:
    """Evaluate with the command, and return the verdict of every sample."""
    command = [sys.executable, "-m", "opasd", "evaluate", "--model", "served", "--engine", "openai", "--url", url]
    command += ["--benchmarks", str(place / "problems.jsonl"), "--samples", str(SAMPLES), "--max-new-tokens", "256"]
    done = run([*command, "--output", str(place / name)], cwd=place)
    if done.returncode:
        raise SystemExit(f"the evaluation fails: {done.stderr[-2000:]}")
    rows = [json.loads(line) for line in (place / name / "samples.jsonl").read_text("utf-8").splitlines()]
    return {(row["problem"], row["sample"]): row["verdict"] for row in rows if "verdict" in row}


def load(place: Path) -> list[Result]:
    """The same evaluation, idle and beside processes that never rest."""
    answers = answers_by_gold()
    rows = [{"problem": f"Problem number {number}.", "answer": gold} for number, gold in enumerate(answers)]
    (place / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    result = Result(
        f"{BUSY} processes that never rest beside an evaluation of {PROBLEMS} problems × {SAMPLES} samples",
        "every verdict is that of an idle machine",
    )
    with Answering(answers) as server:
        idle = verdicts(place, "idle", server.url)
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
        try:
            loaded = verdicts(place, "busy", server.url)
        finally:
            for process in busy:
                process.kill()
                process.wait()
    result.tried = 1
    counts = {verdict: list(idle.values()).count(verdict) for verdict in sorted(set(idle.values()))}
    result.notes.append(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    result.expect(len(idle) == PROBLEMS * SAMPLES, f"{len(idle)} samples")
    result.expect(
        idle == loaded, f"{[(key, idle[key], loaded.get(key)) for key in idle if idle[key] != loaded.get(key)]}"
    )
    return [result]
