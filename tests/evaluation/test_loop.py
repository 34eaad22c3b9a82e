"""Whole evaluations of the embedded model: resumed after any interruption, cut at budgets, adapters swapped."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from peft import PeftModel
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers import PreTrainedModel

from opasd.config import ModelConfig, RolloutConfig
from opasd.errors import ConfigError
from opasd.evaluation import folder as folders
from opasd.evaluation.loop import Base, Evaluation, Exam, evaluate
from opasd.evaluation.samples import SampleFile
from opasd.evaluation.targets import Target
from opasd.model.loading import load_model, load_tokenizer
from opasd.rollout.stops import stop_ids
from opasd.rollout.transformers.engine import TransformersEngine
from opasd.rollout.transformers.swapping import SwappingEngine
from opasd.rollout.vllm.server import ServerEngine
from tests.evaluation.lab import EIGHT_ROWS, LAB, SAMPLING, Quiet, make_adapter, run, short_evaluation


def test_samples_are_drawn_side_by_side(tmp_path):
    """At least twice the tokens for each pass through the model of one prompt at a time."""
    passes = 0

    def count(module, _):
        nonlocal passes
        passes += isinstance(module, PreTrainedModel) and module.get_output_embeddings() is not None

    hook = register_module_forward_pre_hook(count)
    try:
        run(short_evaluation(problems=6), tmp_path / "evaluation")
    finally:
        hook.remove()
    assert 0 < 2 * passes < sum(len(sample.ids) for sample in SampleFile(tmp_path / "evaluation" / "samples.jsonl"))


def no_model(_):
    raise AssertionError


class Stopped(Exception):
    pass


class StoppingBase(Base):
    """A base whose engine stops before its n-th group."""

    def __init__(self, groups: int) -> None:
        super().__init__(LAB, EIGHT_ROWS)
        self.groups = groups

    def engine(self, longest, adapters):
        engine, generate = super().engine(longest, adapters), None
        generate = engine.generate

        def counted(*args):
            self.groups -= 1
            if self.groups < 0:
                raise Stopped
            return generate(*args)

        engine.generate = counted
        return engine


@pytest.fixture(scope="module")
def adapters(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [make_adapter(folder / name, seed) for seed, name in enumerate(("one", "two"))]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "evaluation"
    run(short_evaluation(), path)
    return path


def test_a_model_without_a_chat_template_is_reported(tmp_path):
    evaluation, progress = short_evaluation(problems=1), Quiet()
    for template in (None, "{{ messages[0]['content'] }}"):
        base = StoppingBase(0)
        base.tokenizer.chat_template = template
        with pytest.raises(Stopped):
            evaluate(evaluation, tmp_path, evaluation.settings(), lambda _, base=base: base, progress)
        assert progress.said == ["lab has no chat template: problems are asked as plain text"]


@pytest.mark.parametrize(
    ("groups", "damage"),
    [
        (0, b""),
        (2, b'{"target": "lab", "bench'),
        (1, b"\x00\xff\n{}\n"),
        (1, "first line lost"),
    ],
)
def test_an_interrupted_evaluation_ends_as_an_uninterrupted_one(tmp_path, whole, groups, damage):
    path = tmp_path / "evaluation"
    with pytest.raises(Stopped):
        run(short_evaluation(), path, lambda _: StoppingBase(groups))
    file = path / folders.SAMPLES
    if groups == 0:
        assert not file.exists()
        file.touch()
    lines = file.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4 * groups
    if damage == "first line lost":
        file.write_bytes(b"".join(lines[1:]))
    else:
        file.write_bytes(b"".join(lines) + damage)
    progress = Quiet()
    results = run(short_evaluation(), path, progress=progress)
    samples = [sample.key for sample in SampleFile(file)]
    assert len(samples) == len(set(samples)) == 12
    assert sorted(file.read_bytes().splitlines()) == sorted((whole / folders.SAMPLES).read_bytes().splitlines())
    expected = json.loads((whole / folders.RESULTS).read_text())
    assert results["results"] == expected["results"]
    assert progress.started[0] == 12
    assert sum(samples for _, samples, _ in progress.groups) == 12 - progress.started[1]


def test_lines_that_are_no_samples_of_this_evaluation_are_left_alone(tmp_path, whole):
    """Of another folder, or with the right names and other values: neither a crash nor a result."""
    path = tmp_path / "evaluation"
    shutil.copytree(whole, path)
    file = path / folders.SAMPLES
    lines = file.read_bytes().splitlines(keepends=True)
    wrong = [{"cuts": None}, {"cuts": {"48": 1}}, {"ids": 5}, {"target": [1]}, {"sample": "0"}, {"benchmark": "other"}]
    wrong += [{"target": "other"}, {"problem": "other"}]
    foreign = [f"{json.dumps(json.loads(lines[0]) | {'sample': 7} | change)}\n".encode() for change in wrong]
    foreign.append(b"[" * 100_000 + b"\n")
    file.write_bytes(b"".join([*lines[4:], *foreign, *lines[:4]]))  # the first problems last
    results = run(short_evaluation(), path, no_model)
    assert results["results"] == json.loads((whole / folders.RESULTS).read_text())["results"]


def test_runs_that_differ_in_their_adapters_share_a_base(tmp_path, adapters):
    ranks = [LAB.model_copy(update={"lora_r": rank, "lora_dropout": 0.1 * rank}) for rank in (4, 8)]
    loads: list[object] = []

    def opener(model):
        loads.append(model)
        return Base(model, EIGHT_ROWS)

    targets = [Target(str(n), model, path) for n, (model, path) in enumerate(zip(ranks, adapters, strict=True))]
    run(short_evaluation(Target("lab", LAB), *targets, problems=1, samples=1), tmp_path / "e", opener)
    assert len(loads) == 1


def test_a_finished_evaluation_loads_no_model(tmp_path, whole):
    assert (
        run(short_evaluation(), whole, no_model)["results"]
        == json.loads((whole / folders.RESULTS).read_text())["results"]
    )


def test_every_sample_is_described_whole(whole):
    tokenizer = load_tokenizer(LAB)
    for sample in SampleFile(whole / folders.SAMPLES):
        assert tokenizer.decode(sample.ids, skip_special_tokens=True) == sample.text
        assert sample.finish_reason == ("length" if len(sample.ids) == 48 else "stop")
        assert (sample.answer is None) == (sample.verdict in ("truncated", "no_answer"))
        assert isinstance(sample.seed, int)


def test_a_cut_sample_is_what_a_smaller_budget_draws(tmp_path):
    """The sampler's random numbers belong to tokens, so the first k of them do not know how many may follow."""
    together = run(short_evaluation(budgets=(12, 30, 48), problems=4), tmp_path / "all")
    assert [result["budget"] for result in together["results"]] == [12, 30, 48]
    for result in together["results"]:
        budget = result["budget"]
        shorter = SAMPLING.model_copy(update={"max_new_tokens": budget})
        alone = run(short_evaluation(sampling=shorter, problems=4), tmp_path / str(budget))["results"][0]
        assert {**result, "budget": 0} == {**alone, "budget": 0}
    assert together["results"][0]["truncated"]["mean"] == 1
    assert together["results"][0]["verdicts"]["truncated"] == 8


def test_adapters_are_swapped_on_one_base(tmp_path, adapters):
    targets = [Target("one", LAB, adapters[0]), Target("base", LAB), Target("two", LAB, adapters[1])]
    loads: list[object] = []

    def opener(model):
        loads.append(model)
        return Base(model, EIGHT_ROWS)

    evaluation = short_evaluation(*targets, problems=3)
    results = run(evaluation, tmp_path / "e", opener)
    assert len(loads) == 1
    assert [result["target"] for result in results["results"]] == ["one", "base", "two"]
    assert [(d["target"], d["against"]) for d in results["differences"]] == [("base", "one"), ("two", "one")]
    drawn = {target.name: [] for target in targets}
    for sample in SampleFile(tmp_path / "e" / folders.SAMPLES):
        drawn[sample.target].append(sample)
    assert drawn["one"][0].seed == drawn["two"][0].seed
    tokenizer = load_tokenizer(LAB)
    for target in targets:
        model = load_model(LAB)
        model = model if target.adapter is None else PeftModel.from_pretrained(model, str(target.adapter))
        engine = TransformersEngine(model, stop_ids(model, tokenizer), 8)
        prompts = _prompts(evaluation, tokenizer)
        for start in (0, 4):
            part = drawn[target.name][start : start + 4]
            alone = engine.generate(prompts[start : start + 4], SAMPLING, [sample.seed for sample in part])
            assert [completion.ids for completion in alone] == [tuple(sample.ids) for sample in part]
    assert drawn["one"][0].ids != drawn["base"][0].ids != drawn["two"][0].ids


def _prompts(evaluation: Evaluation, tokenizer):
    from opasd.prompts.pairs import PromptBuilder

    builder = PromptBuilder(tokenizer, evaluation.benchmarks[0].entry.prompts())
    problems = evaluation.benchmarks[0].problems
    return [builder.student_ids(problem.question, thinking=False) for problem in problems for _ in range(2)]


def test_targets_can_be_added_and_other_settings_are_refused(tmp_path, adapters, whole):
    path = tmp_path / "e"
    run(short_evaluation(), path)
    results = run(short_evaluation(Target("one", LAB, adapters[0])), path)
    assert [result["target"] for result in results["results"]] == ["lab", "one"]
    assert results["results"][0] == json.loads((whole / folders.RESULTS).read_text())["results"][0]
    for other, words in [
        (short_evaluation(seed=1), "profile.seed is 0 there and 1 now"),
        (short_evaluation(group=5), "group is 4 there and 5 now"),
        (short_evaluation(problems=5), "benchmarks: lab is another one"),
        (short_evaluation(Target("one", LAB, adapters[1])), "targets: one is another one"),
    ]:
        with pytest.raises(ConfigError, match=words):
            run(other, path)


def test_what_does_not_fit_the_context_is_reported(tmp_path):
    progress = Quiet()
    evaluation = short_evaluation(problems=2, sampling=SAMPLING.model_copy(update={"max_new_tokens": 16_384}))
    run(evaluation, tmp_path / "e", progress=progress)
    assert any("new tokens fit the model's context of 1024" in said for said in progress.said)
    long = dataclasses.replace(evaluation.benchmarks[0].problems[0], question="apples " * 1200)
    benchmark = dataclasses.replace(evaluation.benchmarks[0], problems=(long,))
    with pytest.raises(ConfigError, match="the model's context is 1024"):
        run(dataclasses.replace(evaluation, benchmarks=[benchmark]), tmp_path / "f")


def test_results_reach_the_run(tmp_path, adapters):
    (tmp_path / "runs" / "first").mkdir(parents=True)
    target = Target("first", LAB, adapters[0], run=tmp_path / "runs" / "first")
    results = run(short_evaluation(target, problems=2), tmp_path / "evaluations" / "x")
    assert json.loads((tmp_path / "runs" / "first" / "evaluations" / "x.json").read_text()) == results


def test_variables_of_the_chat_template_reach_the_prompts() -> None:
    base = Base(LAB, EIGHT_ROWS)
    base.tokenizer.chat_template = "{{ greeting | default('') }}" + str(base.tokenizer.chat_template)
    plain = short_evaluation(problems=2)
    greeting = dataclasses.replace(plain, template_options={"greeting": "Ann Bob Cal"})
    prompts = [Exam(evaluation, evaluation.benchmarks[0], base, Quiet()).prompts for evaluation in (plain, greeting)]
    greeting_ids = base.tokenizer("Ann Bob Cal", add_special_tokens=False)["input_ids"]
    assert [[*greeting_ids, *prompt] for prompt in prompts[0].values()] == list(map(list, prompts[1].values()))


def test_the_engine_is_the_one_that_the_settings_name(tmp_path):
    base = Base(LAB, EIGHT_ROWS)
    assert base.context == 1024
    assert isinstance(base.engine(100, []), SwappingEngine)
    servers = RolloutConfig.model_validate({"engine": "vllm_server", "servers": {"urls": ["http://localhost:1"]}})
    engine = Base(LAB, servers).engine(10**6, [make_adapter(tmp_path / "adapter", 0)])
    assert isinstance(engine, ServerEngine)
    assert engine.longest == 1024
    assert "--server" in engine.addresses
    assert Base(LAB, servers.model_copy(update={"max_model_len": 300})).context == 300


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot load the tokenizer"):
        Base(ModelConfig(name_or_path=str(tmp_path)), EIGHT_ROWS)
