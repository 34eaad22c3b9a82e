"""`opasd sweep` where runs that share a GPU are short of its memory: real processes, with a stand-in for their work."""

import json
import os
import pty
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from opasd.run.locks import hold
from tests.cli.conftest import CommandLine
from tests.processes import PATIENCE, wait_until

STAND_IN = """
import json
from pathlib import Path

from opasd.run.manifest import write_manifest

class OutOfMemoryError(RuntimeError):  # as PyTorch's is printed, without the seconds of importing it
    pass
OutOfMemoryError.__module__ = "torch"

def times(event):
    name, what = event.split()
    trace = Path("trace", name)
    return trace.read_text().count(what) if trace.exists() else 0

def work(name):
    def tell(what):
        with Path("trace", name).open("a") as trace:
            trace.write(f"{what} {time.monotonic()} {os.environ.get('CUDA_VISIBLE_DEVICES')}\\n")
    tell("begin")
    attempts = json.loads(os.environ["RUNS"]).get(name, [])
    after, seconds, then = dict(enumerate(attempts, 1)).get(times(name + " begin"), ({}, 0, ""))
    while any(times(event) < count for event, count in after.items()):
        time.sleep(0.01)
    time.sleep(seconds)
    tell("end")
    if then == "memory":
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free.")
    if then == "strangers":
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 446.00 MiB. GPU 0 has a total capacity of "
            "139.80 GiB of which 126.31 MiB is free. Process 1110 has 66.00 MiB memory in use. Process 1200 has "
            "21.78 GiB memory in use. Including non-PyTorch memory, this process has 18.35 GiB memory in use.")
    if then == "vllm":
        from opasd.errors import ConfigError
        raise ConfigError("vLLM cannot serve lab: CUDA error: out of memory (its settings)")
    if then == "bug":
        print("decoding goes on without CUDA graphs, which is slow: CUDA out of memory. Tried to", file=sys.stderr)
        raise RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx")

def train(config, folder, *, resume):
    with Path("trace", folder.name + ".resumed").open("a") as resumed:
        resumed.write(f"{resume} ")
    work(folder.name)
    (folder / "final").mkdir(exist_ok=True)
    (folder / "final" / "README.md").touch()
    write_manifest(folder / "final", None)
    return "finished"

def evaluate(args):
    output = Path(args[args.index("--output") + 1])
    work(output.name)
    output.mkdir(exist_ok=True)
    (output / "evaluation.json").write_text('{"results": []}')
    return 0

module.train = train
evaluation = types.ModuleType("opasd.cli.evaluate")
evaluation.run = evaluate
sys.modules["opasd.cli.evaluate"] = evaluation
"""
TRAIN = ("sweep", "some.yaml", "--no-evaluation")
AGAIN = "; tried again alone when they are done (fewer --jobs avoid this)"
Attempt = tuple[dict[str, int], float, str]
"""Wait for what other runs did so many times ("b begin"), and for some seconds, then do this."""


class Sweeper(CommandLine):
    """Runs a, b, … each of whose attempts does what it is told."""

    def __init__(self, folder: Path, names: str) -> None:
        super().__init__(folder, STAND_IN)
        settings = (f"{{objective.attention_weight: 0.{number}}}" for number in range(1, 9))
        runs = ", ".join(f"{{name: {name}, set: {chosen}}}" for name, chosen in zip(names, settings, strict=False))
        (folder / "some.yaml").write_text(f"recipe: lab-short\nevaluate: {{problems: 1}}\nruns: [{runs}]\n")
        (folder / "trace").mkdir()
        self.environment["CUDA_VISIBLE_DEVICES"] = ""

    def sweep(self, runs: dict[str, list[Attempt]], *args: str, gpus: str = "") -> tuple[int, str, str]:
        return self(*args, RUNS=json.dumps(runs), CUDA_VISIBLE_DEVICES=gpus)

    def spans(self, name: str) -> list[tuple[float, float]]:
        """When its attempts began and ended."""
        lines = [line.split() for line in (self.folder / "trace" / name).read_text().splitlines()]
        assert [line[0] for line in lines] == ["begin", "end"] * (len(lines) // 2)
        times = [float(line[1]) for line in lines]
        return list(zip(times[::2], times[1::2], strict=True))

    def state(self, name: str) -> dict[str, dict[str, object]]:
        path = self.folder / "sweeps" / "some" / "state" / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else {}


def overlap(first: tuple[float, float], second: tuple[float, float]) -> bool:
    return first[0] < second[1] and second[0] < first[1]


def test_what_was_short_of_memory_beside_others_is_made_alone_at_the_end(tmp_path: Path) -> None:
    some = Sweeper(tmp_path, "abcd")
    runs: dict[str, list[Attempt]] = {
        "a": [({"b begin": 1, "c begin": 1}, 0, "memory"), ({}, 0.3, "")],
        "b": [({"a begin": 1, "c begin": 1}, 0, "vllm"), ({}, 0.3, "")],
        "c": [({"a end": 1, "b end": 1, "d begin": 1}, 0.3, "")],
        "d": [({}, 0.3, "")],
    }
    code, table, errors = some.sweep(runs, *TRAIN, "--jobs", "3")
    assert code == 0, errors
    assert "failed" not in errors + table
    assert f"a: out of GPU memory beside 2 others{AGAIN}\n" in errors
    assert f"b: out of GPU memory beside 2 others{AGAIN}\n" in errors
    spans = {name: some.spans(name) for name in "abcd"}
    assert {name: len(attempts) for name, attempts in spans.items()} == {"a": 2, "b": 2, "c": 1, "d": 1}
    for name in "ab":
        others = [span for other in "abcd" for span in spans[other] if span != spans[name][1]]
        assert not any(overlap(spans[name][1], span) for span in others), spans
        assert spans[name][1][0] > max(spans["c"][0][1], spans["d"][0][1])
        assert some.state(name)["train"]["code"] == 0
    # What crashed goes on; what was refused before its first step had left nothing.
    assert (tmp_path / "trace" / "a.resumed").read_text().split() == ["False", "True"]
    assert (tmp_path / "trace" / "b.resumed").read_text().split() == ["False", "False"]


def test_what_fails_alone_or_for_another_reason_has_failed(tmp_path: Path) -> None:
    some = Sweeper(tmp_path, "ab")
    runs: dict[str, list[Attempt]] = {
        "a": [({"b begin": 1}, 0, "memory"), ({}, 0, "memory"), ({}, 0, "memory")],
        "b": [({"a end": 1}, 0, "bug")],
    }
    code, table, errors = some.sweep(runs, *TRAIN, "--jobs", "2")
    assert code == 1, errors
    assert errors.count(f"a: out of GPU memory beside another run{AGAIN}\n") == 1
    assert "a: failed (exit code 1): torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB." in errors
    assert "b: failed (exit code 1): RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED" in errors
    assert [line.split()[-1] for line in table.splitlines() if line[:2] in ("a ", "b ")] == ["failed", "failed"]
    assert [len(some.spans(name)) for name in "ab"] == [2, 1]
    assert some.state("a")["train"]["code"] == 1

    code, _, errors = some.sweep(runs, *TRAIN, "--jobs", "2", "--only", "a")
    assert code == 1
    assert "a: failed (exit code 1): torch.OutOfMemoryError" in errors
    assert "tried again" not in errors
    assert len(some.spans("a")) == 3


def test_beside_processes_of_others_it_is_tried_once_more_at_the_end(tmp_path: Path) -> None:
    some = Sweeper(tmp_path, "abc")
    runs: dict[str, list[Attempt]] = {
        "a": [({}, 0, "strangers"), ({}, 0, "")],
        "b": [({}, 0, "strangers"), ({}, 0, "strangers"), ({}, 0, "")],
        "c": [({}, 0, "")],
    }
    code, _, errors = some.sweep(runs, *TRAIN)
    assert code == 1, errors
    for name in "ab":
        assert errors.count(f"{name}: out of GPU memory beside processes of others; tried again at the end\n") == 1
    assert "a: failed" not in errors
    assert "b: failed (exit code 1): torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 446" in errors
    assert [len(some.spans(name)) for name in "abc"] == [2, 2, 1]
    assert some.spans("c")[0][1] < some.spans("a")[1][0] < some.spans("b")[1][0]


def test_nothing_begins_beside_a_run_that_has_to_be_alone(tmp_path: Path) -> None:
    some = Sweeper(tmp_path, "abc")
    runs = {
        "a": [({"b begin": 1}, 0, "memory"), ({"free begin": 1}, 0.3, "")],
        "b": [({"a end": 1}, 0, "")],
    }
    busy = tmp_path / "sweeps" / "some" / "c.evaluation"
    busy.mkdir(parents=True)
    held = ExitStack()
    held.enter_context(hold(busy, "evaluation"))
    with held, some.start("sweep", "some.yaml", "--jobs", "2", RUNS=json.dumps(runs)) as process:
        trace = tmp_path / "trace" / "a"
        wait_until(lambda: trace.exists() and trace.read_text().count("begin") == 2, process)
        held.close()
        (tmp_path / "trace" / "free").write_text("begin 0\n")
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert "c: another process works on it; waiting" in errors
    assert errors.index("c: training") > errors.index("a: evaluated") > errors.index("a: trained")
    assert some.spans("c")[0][0] > some.spans("a.evaluation")[0][1] > some.spans("a")[1][1]


def test_a_sweep_that_is_stopped_leaves_it_to_be_done(tmp_path: Path) -> None:
    some = Sweeper(tmp_path, "ab")
    runs = {"a": [({"b begin": 1}, 0, "memory")], "b": [({"never begin": 1}, 0, "")]}
    terminal, child_end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "opasd.cli", *TRAIN, "--jobs", "2"],
        cwd=tmp_path, env=some.environment | {"RUNS": json.dumps(runs)}, stdout=subprocess.DEVNULL, stderr=child_end,
    ) as process:  # fmt: skip
        os.close(child_end)
        output = b""

        def read(wanted: bytes) -> None:
            nonlocal output
            while wanted not in output:
                output += os.read(terminal, 4096)  # fails once the process has ended

        read(AGAIN.encode())
        read(b"0 of 2 done  1 to be tried again alone  b step 0/")
        process.send_signal(signal.SIGTERM)
        read(b"stopped; continue with: opasd sweep some.yaml")
        assert process.wait(PATIENCE) == 75
    os.close(terminal)
    assert some.state("a") == {}
    code, _, errors = some.sweep({}, *TRAIN, "--jobs", "2")
    assert code == 0, errors
    assert errors.count("resuming training") == 2


def test_only_runs_on_the_same_gpu_are_beside_one_another(tmp_path: Path) -> None:
    some = Sweeper(tmp_path, "abc")
    everyone = {"a begin": 1, "b begin": 1, "c begin": 1}
    runs: dict[str, list[Attempt]] = {
        "a": [({"c end": 2}, 0, "")],
        "b": [(everyone | {"c end": 1}, 0.3, "memory")],
        "c": [(everyone, 0, "memory"), ({}, 0, "")],
    }
    code, _, errors = some.sweep(runs, *TRAIN, "--jobs", "3", gpus="4,7")
    assert code == 1, errors
    assert f"c: out of GPU memory beside another run{AGAIN}\n" in errors
    assert "b: failed (exit code 1): torch.OutOfMemoryError" in errors
    assert [len(some.spans(name)) for name in "abc"] == [1, 1, 2]
    devices = [[line[-1] for line in (tmp_path / "trace" / name).read_text().split("\n")[:-1]] for name in "abc"]
    assert devices == [["4"] * 2, ["7"] * 2, ["4", "4", "7", "7"]]
    assert some.spans("b")[0][1] < some.spans("c")[1][0] < some.spans("a")[0][1]
