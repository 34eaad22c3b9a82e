"""A step's metrics against values computed by hand."""

import math
import resource
import sys
from dataclasses import replace

import pytest
import torch
from accelerate import Accelerator

from opasd.analysis.leaks import leak_pattern
from opasd.choices import FinishReason
from opasd.config import PromptConfig
from opasd.data.problems import Problem
from opasd.evaluation.answers import Answer
from opasd.grading.verdict import is_correct
from opasd.model.cost import CostModel
from opasd.prompts.rollout import Rollout
from opasd.rollout.engine import Completion
from opasd.trainer import metrics as metrics_module
from opasd.trainer.metrics import StepMetrics, validation_metrics
from tests.models import make_model
from tests.rollouts import make_rollout

LOGS = {"loss": 0.75, "grad_norm": 2.0, "learning_rate": 1e-4}


class Texts:
    """A tokenizer whose texts are given: the first id of a completion is the number of its text."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    all_special_ids = ()
    all_special_tokens = ()
    chat_template = None

    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]:
        return [-1 for _ in tokens]

    def decode(self, ids: list[int]) -> str:
        return self.texts[ids[0]] if ids[0] < len(self.texts) else "a prompt"


@pytest.fixture(scope="module", autouse=True)
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


class Clock:
    """A clock that only the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(metrics_module, "perf_counter", clock := Clock())
    return clock


def spend(metrics: StepMetrics, clock: Clock, **seconds: float) -> None:
    """Let parts of a step take so long."""
    for part, duration in seconds.items():
        with metrics.timed(part):
            clock.now += duration


@pytest.fixture
def metrics() -> StepMetrics:
    return StepMetrics(make_model("qwen3"), checkpointing=False)


def make(number: int, tokens: int, answer: str | None, reason: FinishReason = "stop") -> tuple[Rollout, Completion]:
    """A rollout of so many tokens; its contexts have 8 and 18 tokens before it."""
    rollout = make_rollout(tokens, problem=3, solution=10, student_only=0, seed=number)
    rollout = replace(
        rollout,
        pair=replace(rollout.pair, problem=Problem("question", "solution", answer, f"p{number}")),
        completion_ids=(number, *rollout.completion_ids[1:]),
    )
    return rollout, Completion(rollout.completion_ids, reason)


def start(metrics: StepMetrics, made: list[tuple[Rollout, Completion]], *texts: str) -> list[bool | None]:
    rollouts, completions = zip(*made, strict=True)
    return metrics.add_rollouts(list(rollouts), list(completions), Texts(*texts))


def finish(metrics: StepMetrics, *, skipped: bool = False, **logs: float) -> dict[str, float]:
    return metrics.finish(LOGS | logs, skipped=skipped)


def test_by_hand(metrics):
    made = [make(0, 10, "5"), make(1, 2, "5", "length"), make(2, 30, None, "length"), make(3, 6, "6", "error")]
    start(metrics, made, r"Wait, \boxed{5}", r"maybe \boxed{6}, perhaps", r"\boxed{5}", "waiting")
    values = finish(metrics)
    assert values["rollout/length_mean"] == 12
    assert values["rollout/length_median"] == 8
    assert values["rollout/length_max"] == 30
    assert values["rollout/truncated"] == 0.5
    assert values["rollout/accuracy"] == pytest.approx(1 / 3)  # one of three with an answer
    assert values["rollout/markers"] == 0.75
    assert values["rollout/markers_per_1000"] == pytest.approx(1000 * 3 / 48)
    assert values["tokens/generated"] == 48
    assert values["tokens/processed"] == 48 + 4 * 8 + 48 + 4 * 18
    assert (values["loss"], values["grad_norm"], values["learning_rate"]) == (0.75, 2.0, 1e-4)
    assert values["skipped"] == 0
    cost = CostModel.of(make_model("qwen3"), checkpointing=False).step([18, 10, 38, 14], [28, 20, 48, 24])
    assert {name: value for name, value in values.items() if name.startswith("flops/")} == {
        f"flops/{name}": value for name, value in cost.items()
    }
    assert all(isinstance(value, int | float) for value in values.values())


def test_leaks_are_counted_where_the_wording_can_tell():
    made = [make(0, 3, "5"), make(1, 3, "5")]
    texts = (r"As the reference solution says, \boxed{5}", r"\boxed{5}")
    telling = StepMetrics(make_model("qwen3"), checkpointing=False, leak=leak_pattern(PromptConfig()))
    start(telling, made, *texts)
    assert finish(telling)["rollout/leaks"] == 0.5
    assert "rollout/leaks" not in finish(telling)
    answers = [answered(text, "5", problem=text) for text in texts]
    assert validation_metrics("set", answers, 1, telling.leak)["validation/set/leaks"] == 0.5


def test_verdicts(metrics):
    made = [make(0, 3, "5"), make(1, 3, "5"), make(2, 3, None)]
    assert start(metrics, made, r"\boxed{5}", r"\boxed{4}", r"\boxed{5}") == [True, False, None]


def test_without_answers_there_is_no_accuracy(metrics):
    start(metrics, [make(0, 3, None)], r"\boxed{5}")
    assert "rollout/accuracy" not in finish(metrics)


def test_losses_add_up_over_the_window(metrics):
    """A micro-batch's metrics are its share of the minibatch's mean already."""
    for loss, extra in ((0.5, {"token/loss": 0.1, "attention/divergence": 1.0}), (0.25, {"token/loss": 0.3})):
        metrics.add({"loss": loss, **extra})
    values = finish(metrics)
    assert values["token/loss"] == pytest.approx(0.4)
    assert values["attention/divergence"] == 1.0
    assert values["loss"] == 0.75  # Trainer's, which is over all processes


def test_an_empty_window_has_numbers_still(metrics):
    values = finish(metrics)
    assert values["tokens/generated"] == values["rollout/length_mean"] == values["rollout/truncated"] == 0
    assert all(math.isfinite(value) for value in values.values())


def test_windows_do_not_mix(clock, metrics):
    start(metrics, [make(0, 10, "5")], r"Wait \boxed{5}")
    metrics.add({"token/loss": 1.0})
    spend(metrics, clock, rollout=3.0)
    first = finish(metrics, skipped=True)
    assert first["skipped"] == 1
    assert first["seconds/rollout"] == first["seconds/step"] == 3.0
    start(metrics, [make(1, 4, "5")], "", r"\boxed{6}")
    second = finish(metrics)
    assert second["skipped"] == second["seconds/rollout"] == second["rollout/accuracy"] == 0
    assert second["tokens/generated"] == 4
    assert "token/loss" not in second


def test_parts_of_a_step_in_seconds(metrics, monkeypatch):
    """The update is what of its time is neither the teacher's nor the student's."""
    clock = iter([0.0, 10.0, 12.0, 12.0, 15.0, 20.0, 100.0, 101.0, 102.0, 103.0])
    monkeypatch.setattr(metrics_module, "perf_counter", lambda: next(clock))
    with metrics.timed("update"):  # 0 to 20
        with metrics.timed("teacher"):  # 10 to 12
            pass
        with metrics.timed("student"):  # 12 to 15
            pass
    with metrics.timed("rollout"):
        pass
    start(metrics, [make(0, 7, None)], "")
    values = finish(metrics)
    seconds = {name: values[f"seconds/{name}"] for name in ("rollout", "teacher", "student", "update")}
    assert seconds == {"rollout": 1.0, "teacher": 2.0, "student": 3.0, "update": 15.0}
    assert values["ms_per_processed_token"] == pytest.approx(1000 * 20 / (15 + 25))


def test_time_is_kept_when_the_block_fails(clock, metrics):
    with pytest.raises(KeyError), metrics.timed("student"):
        clock.now += 2.0
        raise KeyError
    assert finish(metrics)["seconds/student"] == 2.0


def test_many_processes(clock, metrics, monkeypatch):
    """Means over all processes; seconds of the slowest, part by part, and the largest peak."""
    row = {"tokens": 10, "student": 18, "teacher": [28], "truncated": True, "correct": True, "markers": 3}
    parts = {"rollout": 0.0, "teacher": 9.0, "student": 1.0, "update": 0.5}
    other = ([row], {"token/loss": 1.0}, parts, 2**60)
    monkeypatch.setattr(metrics_module, "gather_object", lambda own: [other, *own])
    start(metrics, [make(1, 20, "5")], "", r"\boxed{6}")
    metrics.add({"token/loss": 3.0, "token/clipped": 0.5})
    with metrics.timed("update"):
        spend(metrics, clock, teacher=1.0, student=9.0)
        clock.now += 0.25
    values = finish(metrics)
    assert values["token/loss"] == 2.0
    assert values["token/clipped"] == 0.25
    assert values["rollout/accuracy"] == values["rollout/truncated"] == 0.5
    assert values["tokens/generated"] == 30
    assert values["memory/peak_bytes"] == 2**60
    # Not 10.25 − 9 − 9.
    assert (values["seconds/teacher"], values["seconds/student"], values["seconds/update"]) == (9.0, 9.0, 0.5)
    assert values["ms_per_processed_token"] == pytest.approx(1000 * 18.5 * 2 / (18 + 28 + 28 + 38))


def test_seconds_are_never_negative(clock, metrics):
    spend(metrics, clock, teacher=1.0, student=1.0)
    assert finish(metrics)["seconds/update"] == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="device memory is measured where there is a device")
def test_peak_memory_is_in_bytes(metrics):
    """A process with torch in it has taken 100 MB to 100 GB; it has its peak at or above what it has now."""
    peak = finish(metrics)["memory/peak_bytes"]
    assert 1e8 < peak < 1e11
    if sys.platform == "linux":
        assert peak >= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 * 0.5
        with open("/proc/self/status", encoding="ascii") as status:
            high_water = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
        assert peak == pytest.approx(1024 * high_water, rel=0.1)


# ---- validation -----------------------------------------------------------------------------------------------------


def answered(
    text: str, answer: str | None, tokens: int = 4, reason: FinishReason = "stop", problem: str = "p"
) -> Answer:
    correct = None if answer is None else is_correct(text, answer)
    return Answer(problem, 0, (1,) * tokens, text, reason, correct)


def test_validation_by_hand():
    rows = [
        answered(r"\boxed{5}", "5", 10),
        answered(r"\boxed{6}", "5", 20, "length"),
        answered(r"Wait, maybe \boxed{0.5}", r"\frac{1}{2}", 6, problem="q"),
        answered(r"\boxed{0.5}", r"\frac{1}{2}", 4, problem="q"),
    ]
    assert validation_metrics("aime", rows, 2) == {
        "validation/aime/avg@2": 0.75,
        "validation/aime/stderr": 0.25,  # of 1/2 and 1
        "validation/aime/pass@1": 0.75,
        "validation/aime/pass@2": 1.0,
        "validation/aime/markers_per_1000": 50.0,
        "validation/aime/length_mean": 10,
        "validation/aime/truncated": 0.25,
    }


def test_validation_grades_only_what_has_an_answer():
    """An empty box is not the answer to a problem without one."""
    rows = [answered(r"\boxed{}", None), answered(r"\boxed{5}", "5")]
    assert validation_metrics("set", rows, 1)["validation/set/avg@1"] == 1.0
    assert "validation/set/avg@1" not in validation_metrics("set", rows[:1], 1)


def test_an_empty_validation_set():
    assert validation_metrics("set", [], 1) == {}
