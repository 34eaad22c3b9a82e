r"""A judge for answers that no rule can settle: another model says whether an answer in prose states the known result.

    judge = open_judge("http://localhost:8000", rollout)      a server with chat completions, or a model's name
    about = judged(path, judge, samples, settings)

The judge changes no verdict. Its replies are in judged.jsonl, and what it adds is reported apart, with how often it
agrees with the rules on answers that these settle. It is asked about answers that the rules refuse where they or the
known answer are prose, or whose comparison failed. The same answer to the same problem is asked about once.
"""

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from opasd.config import ModelConfig, PromptConfig, RolloutConfig, SamplingConfig, ServersConfig, check_address
from opasd.errors import ConfigError
from opasd.evaluation.answers import readable, thinking_prefix
from opasd.evaluation.folder import known_problems
from opasd.evaluation.loop import Base
from opasd.evaluation.samples import Sample
from opasd.evaluation.statistics import estimate
from opasd.evaluation.targets import resolve
from opasd.files import JsonLines
from opasd.grading.reading import Reading, boxed_answer, unboxed
from opasd.grading.words import is_prose
from opasd.prompts.pairs import PromptBuilder
from opasd.rollout.openai import KEY_VARIABLE, ChatClient
from opasd.rollout.vllm.http import Client, Refused, Unavailable

REPLIES = "judged.jsonl"
CONTROLS = 20
"""Answers of a benchmark that the rules settle and that the judge is asked about too."""
LONGEST_REPLY = 2048
_GREEDY = SamplingConfig(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, max_new_tokens=LONGEST_REPLY)
_SERVERS, _THREADS = ServersConfig(timeout=600), 8
_AT_ONCE = 64
"""Questions that a server is asked before their replies are written."""
_ASK = """Compare two answers to a mathematical problem. They are the same if they state the same result, however it is
written; an answer that says less, more or something else is different.

Problem: {question}

Known answer: {gold}

Answer to compare: {answer}

Reply with \\boxed{{same}} or \\boxed{{different}}."""


class Judge(ABC):
    """Something that answers questions in plain text."""

    name: str

    @abstractmethod
    def ask(self, questions: Sequence[str]) -> Iterable[str]:
        """Return a reply to each question, in order, an empty one where there is none."""


class ModelJudge(Judge):
    """A model on an engine of its own."""

    def __init__(self, model: ModelConfig, rollout: RolloutConfig) -> None:
        self.name = model.name_or_path
        self._base = Base(model, rollout)

    def ask(self, questions: Sequence[str]) -> list[str]:
        tokenizer = self._base.tokenizer
        builder = PromptBuilder(tokenizer, PromptConfig(student="{question}", instruction=""))
        prompts = [builder.student_ids(question, thinking=False) for question in questions]
        room = [self._base.context - len(prompt) for prompt in prompts]
        fitting = [number for number, left in enumerate(room) if left > 0]
        if not fitting:
            return [""] * len(questions)
        longest = min(LONGEST_REPLY, *(room[number] for number in fitting))
        sampling = _GREEDY.model_copy(update={"max_new_tokens": longest})
        replies = [""] * len(questions)
        with closing(self._base.engine(max(len(prompts[number]) for number in fitting) + longest, [])) as engine:
            drawn = engine.generate([prompts[number] for number in fitting], sampling, [0] * len(fitting))
        for number, completion in zip(fitting, drawn, strict=True):
            replies[number] = thinking_prefix(tokenizer, prompts[number]) + readable(tokenizer, completion.ids)
        return replies


class ServerJudge(Judge):
    """A server with chat completions; `URL#NAME` chooses one of its models."""

    def __init__(self, url: str) -> None:
        address, _, self.name = url.partition("#")
        try:
            check_address(address)
        except ValueError as error:
            raise ConfigError(f"--judge: {error}; or a model's name") from error
        try:
            self.name = self.name or str(Client(address, 30.0, KEY_VARIABLE).call("/v1/models")["data"][0]["id"])
        except (Refused, Unavailable, LookupError, TypeError) as error:
            raise ConfigError(f"--judge: {address} gives no list of models ({error}); give another address") from error
        self._client = ChatClient(address, self.name, _SERVERS, _THREADS)

    def ask(self, questions: Sequence[str]) -> Iterator[str]:
        for start in range(0, len(questions), _AT_ONCE):
            some = questions[start : start + _AT_ONCE]
            yield from (answer.text for answer in self._client.answer(some, _GREEDY, [0] * len(some)))


def find_judge(name: str) -> ServerJudge | ModelConfig:
    """Return the server or the model that a flag names, and load nothing; refuse what is neither."""
    if "://" in name:
        return ServerJudge(name)
    try:
        (target,) = resolve([name])
    except ConfigError as error:
        raise ConfigError(f"--judge: {error}") from error
    if target.adapter:
        raise ConfigError(f"--judge: {name} is an adapter; give a whole model, as opasd merge writes it")
    return target.model


def open_judge(name: str, rollout: RolloutConfig) -> Judge:
    """Return the judge that a flag names: an address, or a model for the engine of `rollout`."""
    judge = find_judge(name)
    return ModelJudge(judge, rollout) if isinstance(judge, ModelConfig) else judge


class Case(NamedTuple):
    """One answer to one problem."""

    benchmark: str
    problem: str
    answer: str


def is_unsettled(sample: Sample, gold: str) -> bool:
    """Return whether the rules have no say on a sample's answer, which they do not accept."""
    if not sample.answer or sample.verdict not in ("wrong", "grader_failed"):
        return False
    return sample.verdict == "grader_failed" or is_prose(gold) or is_prose(sample.answer)


def judged(path: Path, judge: Judge, samples: Iterable[Sample], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the judge what the folder has no reply to yet; return what it adds, by target and benchmark."""
    problems = known_problems(path)
    kept = [sample for sample in samples if (sample.benchmark, sample.problem) in problems]
    golds = {place: str(problem.answer) for place, problem in problems.items()}
    open_cases = {_case(s): s.verdict for s in kept if is_unsettled(s, golds[s.benchmark, s.problem])}
    settled = {_case(s): s.verdict for s in kept if s.answer and s.verdict in ("correct", "wrong")}
    controls = {case: settled[case] for name in settings["benchmarks"] for case in _controls(name, settled, open_cases)}
    same = _replies(path, judge, [*open_cases, *controls], problems)
    rules = Counter((verdict == "correct", same[case]) for case, verdict in controls.items())
    return {
        "name": judge.name,
        "trials": [_trial(own, same, open_cases) for own in _trials(kept)],
        "agreement": {
            "asked": len(controls),
            "same_verdict": rules[True, True] + rules[False, False],
            "only_rules_accept": rules[True, False],
            "only_judge_accepts": rules[False, True],
            "unclear": rules[True, None] + rules[False, None],
        },
    }


def _case(sample: Sample) -> Case:
    return Case(sample.benchmark, sample.problem, sample.answer or "")


def _controls(benchmark: str, settled: Mapping[Case, str], open_cases: Mapping[Case, str]) -> list[Case]:
    """Return some settled answers of a benchmark, half of them right ones where there are enough, always the same."""
    chosen: list[Case] = []
    for right in (True, False):
        own = [c for c, verdict in settled.items() if c.benchmark == benchmark and (verdict == "correct") is right]
        own = sorted(set(own) - set(open_cases), key=lambda case: hashlib.blake2b(repr(case).encode()).digest())
        chosen += own[: CONTROLS // 2]
    return chosen


def _replies(path: Path, judge: Judge, cases: Sequence[Case], problems: Mapping[Any, Any]) -> dict[Case, bool | None]:
    """Return what the judge says of each case: the same, different, or None for nothing clear."""
    file = JsonLines(path / REPLIES)
    known = {
        Case(row["benchmark"], row["problem"], row["answer"]): row["same"]
        for row in file
        if row.get("judge") == judge.name and row.keys() >= {*Case._fields, "same"}
    }
    missing = [case for case in dict.fromkeys(cases) if case not in known]
    asked = [(case, problems[case.benchmark, case.problem]) for case in missing]
    questions = [_ASK.format(question=p.question, gold=unboxed(str(p.answer)), answer=case.answer) for case, p in asked]
    for (case, problem), reply in zip(asked, judge.ask(questions) if questions else [], strict=True):
        known[case] = says_same(reply)
        about = {"judge": judge.name, **case._asdict(), "gold": problem.answer, "same": known[case], "reply": reply}
        file.append(about)
    return {case: known[case] for case in cases}


def says_same(reply: str) -> bool | None:
    """Return what a reply says; None if it says neither."""
    reply = reply.rpartition("</think>")[2]  # what a server returns apart stands in front
    word = (boxed_answer(reply, Reading(boxes="last")) or reply.strip()).strip(" .*{}").casefold()
    word = word.removeprefix("\\text{").strip()
    return {"same": True, "yes": True, "different": False, "no": False}.get(word)


def _trials(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    trials: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        trials.setdefault((sample.target, sample.benchmark), []).append(sample)
    yield from trials.values()


def _trial(samples: Sequence[Sample], same: Mapping[Case, bool | None], asked: Mapping[Case, str]) -> dict[str, Any]:
    """Return how many samples the judge was asked about and what it said, and the average if its word counts."""
    said = Counter(same[_case(sample)] for sample in samples if _case(sample) in asked)
    shares: dict[str, list[bool]] = {}
    for sample in samples:
        right = sample.verdict == "correct" or (_case(sample) in asked and same[_case(sample)] is True)
        shares.setdefault(sample.problem, []).append(right)
    return {
        "target": samples[0].target,
        "benchmark": samples[0].benchmark,
        "asked": said.total(),
        "same": said[True],
        "different": said[False],
        "unclear": said[None],
        "avg": estimate([sum(own) / len(own) for own in shares.values()])._asdict(),
    }


def in_words(about: Mapping[str, Any]) -> str:
    """Return the judge's part as lines for people."""
    lines = [
        f"judge {about['name']}: {t['target']} on {t['benchmark']}: asked about {t['asked']} samples that no rule "
        f"settles: {t['same']} same, {t['different']} different, {t['unclear']} unclear; with it Avg is "
        f"{100 * t['avg']['mean']:.1f}"
        for t in about["trials"]
    ]
    agreement = about["agreement"]
    lines.append(
        f"it agrees with the rules on {agreement['same_verdict']} of {agreement['asked']} answers that they settle "
        f"(accepted by it alone: {agreement['only_judge_accepts']}, by them alone: {agreement['only_rules_accept']})"
    )
    return "".join(f"{line}\n" for line in lines)
