"""Answers: each problem's own seeds, graded where there is an answer."""

from opasd.config import PromptConfig, SamplingConfig
from opasd.data.problems import Problem
from opasd.evaluation.answers import answer
from opasd.prompts.pairs import PromptBuilder
from opasd.rollout.stops import stop_ids
from opasd.rollout.transformers.engine import TransformersEngine
from tests.training import PROBLEMS, TOKENIZER, make_model


def answers(problems, **options):
    model = make_model()
    engine = TransformersEngine(model, stop_ids(model, TOKENIZER))
    builder = PromptBuilder(TOKENIZER, PromptConfig())
    return answer(problems, engine, builder, TOKENIZER, SamplingConfig(max_new_tokens=5, top_k=0), **options)


def test_a_problems_answers_do_not_depend_on_the_others():
    together = answers(PROBLEMS[:4], samples=2, seed=3)
    alone = [sampled for problem in PROBLEMS[:4] for sampled in answers([problem], samples=2, seed=3)]
    assert together == alone
    assert [(sampled.problem_id, sampled.sample) for sampled in together[:3]] == [("p00", 0), ("p00", 1), ("p01", 0)]
    assert together[0].ids != together[1].ids
    assert answers(PROBLEMS[:1], seed=4)[0].ids != together[0].ids


def test_unknown_answers_are_not_graded():
    known, unknown = answers([PROBLEMS[0], Problem("What?", "")])
    assert known.correct is False
    assert unknown.correct is None
