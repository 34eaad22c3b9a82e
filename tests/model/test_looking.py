"""Where both roles look in training: the sums equal what a probe measures by whole responses."""

import pytest

from opasd.data.made import make_problems, needed_spans, task_of
from opasd.data.problems import Problem
from opasd.model import looking
from opasd.model.looking import RATIOS, decoder, look_sums
from opasd.model.objective import teacher_scores
from opasd.model.scoring import Scorer
from opasd.probe.look import REFERENCES, look, responses
from opasd.probe.measure import set_up
from opasd.prompts.alignment import align
from opasd.prompts.pairs import PromptBuilder
from opasd.prompts.rollout import Rollout
from opasd.recipes import load_recipe
from tests.probe.test_look import Silent


@pytest.fixture(scope="module", params=["solution", "answer"])
def read(request):
    """Three gold solutions as a probe reads them, and as a training step does: with the solution, and with the final
    answer as the attention loss's own reference."""
    config = load_recipe("lab").config()
    setup = set_up(config, 3, Silent().say)
    texts = responses(setup, None, 512)
    looks = [one for one in look(config, setup, texts, Silent()) if one.reference == request.param]
    own = None if request.param == "solution" else REFERENCES[request.param]
    builder = PromptBuilder(setup.tokenizer, config.prompts.model_copy(update={"attention_reference": own}))
    rollouts = [Rollout(builder.pair(text.problem), text.ids, str(number)) for number, text in enumerate(texts)]
    scorer = Scorer(setup.model, 2)
    scores = scorer(rollouts, "student"), teacher_scores(scorer, rollouts, config.objective)
    alignments = [align(rollout.for_attention.pair, rollout.num_tokens) for rollout in rollouts]
    return looks, rollouts, scores, alignments, decoder(setup.tokenizer)


def quotients(sums):
    return {name: sums[above] / sums[below] for name, (above, below) in RATIOS.items() if below in sums}


def test_the_sums_are_those_of_a_probe(read, monkeypatch):
    looks, rollouts, scores, alignments, decode = read
    monkeypatch.setattr(looking, "STEPS", 512)  # every step
    found = quotients(look_sums(rollouts, *scores, alignments, decode))
    needs, steps = sum(one.steps for one in looks), sum(rollout.num_tokens for rollout in rollouts)
    for name, field in (("attention/needed_mass", "student"), ("attention/needed_target", "projected")):
        wanted = sum(one.steps * sum(getattr(one, field)[-2:]) / 2 for one in looks) / needs
        assert found[name] == pytest.approx(wanted, rel=1e-3)
    for name, field in (("attention/reference_text_mass", "rho_text"), ("attention/reference_words_mass", "rho_words")):
        each = zip(looks, rollouts, strict=True)
        wanted = sum(rollout.num_tokens * sum(getattr(one, field)[-2:]) / 2 for one, rollout in each) / steps
        assert found[name] == pytest.approx(wanted, rel=1e-3)


def test_a_few_positions_of_a_long_rollout_are_read(read, monkeypatch):
    _, rollouts, scores, alignments, decode = read
    monkeypatch.setattr(looking, "STEPS", 5)
    sums = look_sums(rollouts, *scores, alignments, decode)
    assert 3 * 3 <= sums["looked/steps"] <= 3 * 5
    assert sums["looked/needs"] == 15
    assert 0 < quotients(sums)["attention/reference_text_mass"] < 1


def test_other_problems_have_no_needs_and_empty_rollouts_count_nothing(read):
    _, rollouts, scores, _, decode = read
    assert look_sums([], *scores, [], decode) == {"looked/rollouts": 0.0}
    problem = rollouts[0].pair.problem
    own = Problem(problem.question, problem.solution, problem.answer, "mine-1")
    assert needed_spans(task_of(own), own, problem.solution) is None


@pytest.mark.parametrize("task", ["lab", "lookup", "ledger", "arithmetic"])
def test_a_made_problem_names_its_task(task):
    problem = make_problems(task, "train", 1)[0]
    assert task_of(problem) == task
    assert needed_spans(task, problem, problem.solution)
