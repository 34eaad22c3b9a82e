"""Evaluations, merges and several processes, killed at random moments."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.faults.common import EXACT, QUICK, Result, child, end_of, same, train
from tests.faults.recipe import write_recipe
from tests.processes import environment
from tests.training import TOKENIZER, make_model, rows


def evaluations(place: Path) -> list[Result]:
    """Evaluation, killed at random moments."""
    from tests.commands import opasd

    words = ["evaluate", "lab", "--benchmarks", "lab", "--problems", "24", "--samples", "2", "--max-batch", "4"]
    began = time.monotonic()
    if end_of(child(lambda: opasd(place, *words, "--output", "whole-evaluation"))) != 0:
        raise SystemExit("the undisturbed evaluation fails")
    lasts = time.monotonic() - began
    evaluated = Result("SIGKILL of an evaluation at random moments", "the same command continues; the same samples")
    for index in range(1 if QUICK else 3):
        output = f"evaluation-{index}"
        for attempt in range(8):
            pid = child(lambda output=output: opasd(place, *words, "--output", output), place / "log")
            if attempt < 4:
                time.sleep(random.uniform(0.1, lasts))
                os.kill(pid, signal.SIGKILL)
            code = end_of(pid)
            evaluated.tried += code == -signal.SIGKILL
            if code == 0:
                break
        contents = [(place / name / "samples.jsonl").read_text().splitlines() for name in ("whole-evaluation", output)]
        evaluated.expect(sorted(contents[0]) == sorted(contents[1]), "other samples")
    return [evaluated]


def merges(place: Path) -> list[Result]:
    """Merging, killed at random moments and while its files are moved."""
    from transformers import AutoModelForCausalLM

    from tests.commands import opasd

    merged = Result(
        "SIGKILL of a merge at random moments", "nothing that loads, or the whole; the same command ends it"
    )
    make_model().save_pretrained(place / "model")
    TOKENIZER.save_pretrained(place / "model")
    run = place / "to-merge"
    end_of(child(lambda: train(run, 2, model=AutoModelForCausalLM.from_pretrained(place / "model"))))
    began = time.monotonic()
    end_of(child(lambda: opasd(place, "merge", str(run / "final"), "whole-model")))
    lasts = time.monotonic() - began
    whole = load_file(place / "whole-model" / "model.safetensors")
    for index in range(2 if QUICK else 20):
        out = place / f"merged-{index}"
        pid = child(lambda out=out: opasd(place, "merge", str(run / "final"), str(out)), place / "log")
        if index % 2:
            time.sleep(random.uniform(0.2, 1.1) * lasts)
        else:
            while not any(out.glob(".new-*/model.safetensors")) and os.waitpid(pid, os.WNOHANG)[0] == 0:
                time.sleep(0.0005)
            time.sleep(random.uniform(0, 0.02))
        try:
            os.kill(pid, signal.SIGKILL)
            merged.tried += end_of(pid) == -signal.SIGKILL
        except (ProcessLookupError, ChildProcessError):
            continue
        if (out / "config.json").exists():
            weights = load_file(out / "model.safetensors")
            merged.expect(all(torch.equal(weights[name], whole[name]) for name in whole), "a partial model loads")
            continue
        code = end_of(child(lambda out=out: _exits(opasd(place, "merge", str(run / "final"), str(out)))))
        merged.expect(code == 0, "does not merge again")
        merged.expect(not list(out.glob(".*")), "left behind")
    return [merged]


def _exits(done: "subprocess.CompletedProcess[str]") -> None:
    sys.stderr.write(done.stderr)
    os._exit(done.returncode)


def ranks(place: Path) -> list[Result]:
    """A process of two that is killed, and the command that started them."""
    write_recipe(place)

    def start(*words: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "opasd", "train", *words, "--num-processes", "2"]
        return subprocess.Popen(command, cwd=place, env=environment(), stderr=subprocess.PIPE, text=True)

    whole = start("tiny.yaml", "--name", "whole")
    if whole.communicate()[1] is None or whole.returncode:
        raise SystemExit("the undisturbed run of two processes fails")
    rank = Result(
        "SIGKILL of one process of two", f"the other ends within 35 s, one message with how to resume; {EXACT}"
    )
    starter = Result("SIGKILL of the command that started two", f"no process outlives it by 35 s; {EXACT}")
    hung_up = Result("SIGHUP of the command that started two", f"a checkpoint, no process outlives it; {EXACT}")
    for result, times in ((rank, 1 if QUICK else 4), (starter, 1 if QUICK else 2), (hung_up, 1)):
        for index in range(times):
            name = f"{result.fault.split()[2]}-{result.fault.split()[0]}-{index}"
            run = place / "runs" / name
            process = start("tiny.yaml", "--name", name)
            while len(rows(run)) < 3 + 3 * index:
                time.sleep(0.02)
            pids = _of_run(name)
            began = time.monotonic()
            victim = random.choice(pids[1:] or pids) if result is rank else process.pid
            os.kill(victim, signal.SIGHUP if result is hung_up else signal.SIGKILL)
            errors = process.communicate()[1]
            while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < began + 60:
                time.sleep(0.05)
            result.slowest = max(result.slowest, time.monotonic() - began)
            result.tried += 1
            if result is rank:
                result.expect(errors.count("error: ") == 1 and "was killed by SIGKILL" in errors, errors[-300:])
                result.expect("--resume" in errors, "no hint to resume")
            again = start("--resume", str(run))
            result.expect("Traceback" not in (again.communicate()[1] or ""), "a traceback")
            result.expect(again.returncode == 0, "does not resume")
            same(result, run, place / "runs" / "whole")
        result.expect(result.slowest < 35, f"{result.slowest:.0f} s")
    return [rank, starter, hung_up]


def _of_run(name: str) -> list[int]:
    """Return the processes that train the run, found by their own command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"opasd.cli" in words and name.encode() in words:
            found.append(int(path.parent.name))
    return sorted(found)


def sweeps(place: Path) -> list[Result]:
    """A sweep that is killed again and again."""
    write_recipe(place)
    (place / "two.yaml").write_text(json.dumps({"recipe": "tiny.yaml", "grid": {"train.seed": [1, 2]}}))

    def start(output: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "opasd", "sweep", "two.yaml", "--no-evaluation", "--output", output]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(command, cwd=place, env=environment(), **silent)

    if start("whole").wait():
        raise SystemExit("the undisturbed sweep fails")
    result = Result("SIGKILL of a sweep at random moments", f"the same command continues; {EXACT}")
    for _ in range(1 if QUICK else 3):
        process = start("killed")
        seen = sum(len(rows(run)) for run in (place / "killed").glob("*/"))
        while process.poll() is None and sum(len(rows(run)) for run in (place / "killed").glob("*/")) < seen + 5:
            time.sleep(0.02)
        pids = _of_run(str(place / "killed")) or _of_run("killed")
        process.kill()
        result.tried += process.wait() == -signal.SIGKILL
        ended = time.monotonic() + 35
        while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < ended:
            time.sleep(0.05)
        result.expect(not any(Path(f"/proc/{pid}").exists() for pid in pids), "a process outlives it")
    result.expect(start("killed").wait() == 0, "does not end")
    for run in (place / "whole").glob("*/config.yaml"):
        same(result, place / "killed" / run.parent.name, run.parent)
    return [result]
