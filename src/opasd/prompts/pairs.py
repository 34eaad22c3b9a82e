"""What the two roles read: the student the problem, the teacher the problem and its reference solution or answer.

    builder = PromptBuilder(tokenizer, config.prompts)
    pairs, report = builder.pairs(problems, on_bad_row="skip")

Token ids are made here, once; everything later works on them and on the token ranges that a `PromptPair` carries.
The problem, the instruction and the generation prompt are never cut. A solution that does not fit is cut by
policy, with `CUT_MARK` where text was removed.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, overload

from opasd.choices import CutPolicy, Role, StopOrSkip
from opasd.config import PromptConfig
from opasd.data.problems import Problem
from opasd.errors import AlignmentError, ConfigError, PromptError
from opasd.prompts.chat import THINK_TAGS, Chat, Encoded
from opasd.prompts.wording import Message, Span, Wordings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CUT_MARK = "[...]"
_EXAMPLES = 5
_AT_ONCE = 64
"""Problems whose contexts are encoded together."""


@dataclass(frozen=True)
class PromptPair:
    """The two contexts of one problem, before any rollout, and the token positions of their parts."""

    problem: Problem
    student_ids: tuple[int, ...]
    teacher_ids: tuple[int, ...]
    student_question: range
    """The question's tokens in the student's context; they equal `teacher_question`'s one by one."""
    teacher_question: range
    """The question's tokens in the teacher's context."""
    reference: range
    """The reference block's tokens in the teacher's context: markers, solution, transition."""
    neutralised: bool = False
    """Whether the problem or its solution imitated the chat template and was made plain text."""
    solution_tokens_cut: int = 0
    """How many of the solution's tokens did not fit."""


class PromptPairs(Sequence[PromptPair]):
    """Pairs whose token ids take four bytes each until they are asked for: a data set has a hundred million."""

    def __init__(self, pairs: Iterable[PromptPair] = ()) -> None:
        self._kept = [self._packed(pair) for pair in pairs]

    def append(self, pair: PromptPair) -> None:
        """Add a pair."""
        self._kept.append(self._packed(pair))

    def __len__(self) -> int:
        return len(self._kept)

    @overload
    def __getitem__(self, index: int) -> PromptPair: ...
    @overload
    def __getitem__(self, index: slice) -> "PromptPairs": ...
    def __getitem__(self, index: int | slice) -> "PromptPair | PromptPairs":
        if isinstance(index, slice):
            some = PromptPairs()
            some._kept = self._kept[index]
            return some
        pair, student, teacher = self._kept[index]
        return replace(pair, student_ids=tuple(student), teacher_ids=tuple(teacher))

    @property
    def problems(self) -> list[Problem]:
        """The problems alone."""
        return [pair.problem for pair, _, _ in self._kept]

    @staticmethod
    def _packed(pair: PromptPair) -> tuple[PromptPair, "array[int]", "array[int]"]:
        empty = replace(pair, student_ids=(), teacher_ids=())
        return empty, array("i", pair.student_ids), array("i", pair.teacher_ids)


@dataclass
class PromptReport:
    """What became of the rows, for the metrics."""

    rows: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Rows left out, by reason."""
    skipped_ids: dict[str, list[str]] = field(default_factory=dict)
    """The first few rows left out, by reason."""
    solutions_cut: int = 0
    solution_tokens_cut: int = 0
    neutralised: int = 0

    def keep(self, pair: PromptPair) -> None:
        """Count a row that is used."""
        self.rows += 1
        self.solutions_cut += pair.solution_tokens_cut > 0
        self.solution_tokens_cut += pair.solution_tokens_cut
        self.neutralised += pair.neutralised

    def skip(self, problem: Problem, reason: str) -> None:
        """Count a row that is left out."""
        self.rows += 1
        self.skipped[reason] += 1
        ids = self.skipped_ids.setdefault(reason, [])
        if len(ids) < _EXAMPLES:
            ids.append(problem.id)

    def to_dict(self) -> dict[str, int]:
        """Counts by name: every name always there but the reasons, which are there when they occurred."""
        return {
            "rows": self.rows,
            "used": self.rows - self.skipped.total(),
            "skipped": self.skipped.total(),
            **{f"skipped_{reason}": count for reason, count in sorted(self.skipped.items())},
            "solutions_cut": self.solutions_cut,
            "solution_tokens_cut": self.solution_tokens_cut,
            "neutralised": self.neutralised,
        }


class PromptBuilder:
    """Renders problems into pairs of contexts with one tokenizer and one wording."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", config: PromptConfig) -> None:
        self.config = config
        self._chat = Chat(tokenizer, system=config.system, options=config.template_options)
        self._student, self._teacher, self._reference = Wordings.of(config)
        self._check_own_text()

    def pair(self, problem: Problem) -> PromptPair:
        """The two contexts of `problem`, or `PromptError` or `AlignmentError` when it cannot be used."""
        question, original, shown = self._texts(problem)
        student, student_message = self._encode_student(question, problem, thinking=self.config.student_thinking)
        if len(student.ids) > self.config.max_student_tokens:
            raise PromptError(
                f"{_name(problem)}: the student's context has {len(student.ids)} tokens, max_student_tokens = "
                f"{self.config.max_student_tokens}, and a problem is never cut; raise the limit or skip the row",
                "student_too_long",
            )
        teacher, teacher_message, cut = self._fit_teacher(question, shown, problem)
        spans = (student.span(student_message.spans["question"]), teacher.span(teacher_message.spans["question"]))
        pair = PromptPair(
            problem=problem,
            student_ids=student.ids,
            teacher_ids=teacher.ids,
            student_question=student.tokens(spans[0]),
            teacher_question=teacher.tokens(spans[1]),
            reference=teacher.tokens_touching(teacher.span(teacher_message.spans["reference"])),
            neutralised=(question, shown) != (problem.question, original),
            solution_tokens_cut=cut,
        )
        _check_question(pair, (student, teacher), spans)
        return pair

    def pairs(
        self, problems: Iterable[Problem], *, on_bad_row: StopOrSkip = "stop"
    ) -> tuple[PromptPairs, PromptReport]:
        """The pairs of all usable problems, in order, and a count of what happened to the rows."""
        pairs, report = PromptPairs(), PromptReport()
        waiting = iter(problems)
        while some := list(islice(waiting, _AT_ONCE)):
            self._prepare(some)
            for problem in some:
                try:
                    pair = self.pair(problem)
                except (PromptError, AlignmentError) as error:
                    reason = error.reason if isinstance(error, PromptError) else "alignment"
                    asked_for = reason == "solution_too_long" and self.config.cut_solution == "skip"
                    if on_bad_row == "stop" and not asked_for:
                        raise
                    report.skip(problem, reason)
                else:
                    report.keep(pair)
                    pairs.append(pair)
        return pairs, report

    def _prepare(self, problems: Iterable[Problem]) -> None:
        """Have the contexts of several problems encoded at once; `pair` then finds them."""
        messages: list[tuple[str, bool]] = []
        for problem in problems:
            with suppress(PromptError):  # which `pair` raises
                question, _, shown = self._texts(problem)
                messages.append((self._student_message(question).text, self.config.student_thinking))
                messages.append((self._teacher_message(question, shown).text, self.config.teacher_thinking))
        self._chat.prepare(messages)

    def _texts(self, problem: Problem) -> tuple[str, dict[str, str], dict[str, str]]:
        """The question as it is asked, and what the reference shows as it is on record and as it is shown."""
        question, original = self._plain(problem.question, problem), self._shown(problem)
        return question, original, {name: self._plain(text, problem) for name, text in original.items()}

    def _shown(self, problem: Problem) -> dict[str, str]:
        """What the reference shows of the problem.

        What it begins with stands behind the question's line break, with which white space would join to tokens that
        the student does not have.
        """
        return {
            name: text.lstrip() if self.config.reference.startswith(f"{{{name}}}") else text
            for name, text in self._fields(problem).items()
        }

    def _fields(self, problem: Problem) -> dict[str, str]:
        if "answer" not in self.config.reference_fields():
            return {"solution": problem.solution}
        if problem.answer is None:
            raise PromptError(
                f"{_name(problem)}: there is no answer, which prompts.reference shows; name the answers' column in "
                "columns.answer of these data, or skip the row",
                "no_answer",
            )
        both = {"solution": problem.solution, "answer": problem.answer}
        return {name: both[name] for name in self.config.reference_fields()}

    def student_ids(self, question: str, *, thinking: bool | None = None) -> tuple[int, ...]:
        """The student's context of a bare question, of any length, as evaluation asks it."""
        problem = Problem(question=question, solution="")
        thinking = self.config.student_thinking if thinking is None else thinking
        return self._encode_student(self._plain(question, problem), problem, thinking=thinking)[0].ids

    def _check_own_text(self) -> None:
        """Refuse a wording that would itself break the roles; think tags in it may be meant."""
        own = {
            "student": self._student.literal,
            "teacher": self._teacher.literal,
            "reference": self._reference.literal,
            "instruction": self.config.instruction,
            "system": self.config.system or "",
        }
        for name, text in own.items():
            for control in sorted(self._chat.control_strings - THINK_TAGS):
                if control in text:
                    raise ConfigError(
                        f"prompts.{name} contains {control!r}, which the chat template uses between turns; remove it"
                    )

    def _plain(self, text: str, problem: Problem) -> str:
        """A row's text without control strings."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(f"{_name(problem)}: not valid Unicode: {error}; repair or skip the row", "text") from None
        control = self._chat.find_control_string(text)
        if control is None:
            return text
        if self.config.imitation == "refuse":
            at = text.index(control)
            raise PromptError(
                f"{_name(problem)}: the text imitates the chat template with {control!r} in "
                f"{text[max(at - 30, 0) : at + 50]!r}; remove it, or set imitation: neutralise",
                "imitation",
            )
        return self._chat.neutralise(text)

    def _encode(self, role: Role, message: Message, fields: Sequence[str], problem: Problem, thinking: bool) -> Encoded:
        try:
            encoded = self._chat.encode(message.text, thinking=thinking)
        except PromptError as error:
            raise PromptError(f"{_name(problem)}, {role}: {error}", error.reason) from error
        for name in fields:
            span = encoded.span(message.spans[name])
            # A normaliser, or text that joins with its neighbours, can still make a control token.
            if control := self._chat.find_control_token(encoded, span):
                raise PromptError(
                    f"{_name(problem)}: the {name} makes the tokenizer emit the control token {control!r}; "
                    "remove that text or skip the row",
                    "imitation",
                )
        return encoded

    def _encode_student(self, question: str, problem: Problem, *, thinking: bool) -> tuple[Encoded, Message]:
        message = self._student_message(question)
        encoded = self._encode("student", message, ["question"], problem, thinking)
        if not encoded.tokens(encoded.span(message.spans["question"])):
            raise PromptError(f"{_name(problem)}: the question leaves no token; repair or skip the row", "text")
        return encoded, message

    def _encode_teacher(self, question: str, shown: Mapping[str, str], problem: Problem) -> tuple[Encoded, Message]:
        message = self._teacher_message(question, shown)
        encoded = self._encode("teacher", message, ["question", *shown], problem, self.config.teacher_thinking)
        return encoded, message

    def _student_message(self, question: str) -> Message:
        return self._student.fill({"question": question, "instruction": self.config.instruction})

    def _teacher_message(self, question: str, shown: Mapping[str, str]) -> Message:
        reference = self._reference.fill(shown)
        message = self._teacher.fill(
            {"question": question, "reference": reference.text, "instruction": self.config.instruction}
        )
        start = message.spans["reference"][0]
        inner = {name: (start + first, start + last) for name, (first, last) in reference.spans.items()}
        return Message(message.text, {**message.spans, **inner})

    def _fit_teacher(self, question: str, shown: Mapping[str, str], problem: Problem) -> tuple[Encoded, Message, int]:
        """The teacher's context within its limit, and how many of the solution's tokens that cost."""
        encoded, message = self._encode_teacher(question, shown, problem)
        limit, policy = self.config.max_teacher_tokens, self.config.cut_solution
        if len(encoded.ids) <= limit:
            return encoded, message, 0
        too_long = (
            f"{_name(problem)}: the teacher's context has {len(encoded.ids)} tokens, max_teacher_tokens = {limit}"
        )
        if "solution" not in shown:
            raise PromptError(f"{too_long}, and there is no solution to cut; raise the limit", "teacher_too_long")
        if policy == "skip":
            raise PromptError(
                f"{too_long}; raise the limit or choose which part of solutions to cut", "solution_too_long"
            )
        start, end = message.spans["solution"]
        span = encoded.span((start, end))
        trimmed = span[0] - (encoded.origin + start)
        offsets = [_within(encoded.offsets[position], span) for position in encoded.tokens(span)]
        spans = [(trimmed + first, trimmed + last) for first, last in offsets]
        keep = len(spans)
        # Every pass keeps fewer tokens, so this ends; it overshoots only by what the new ends tokenise into.
        while len(encoded.ids) > limit:
            keep -= len(encoded.ids) - limit
            kept = _cut(shown["solution"], spans, keep, policy) if keep > 0 else ""
            if not kept.replace(CUT_MARK, "").strip():
                raise PromptError(f"{too_long}, and nothing of its solution fits; raise the limit", "solution_too_long")
            encoded, message = self._encode_teacher(question, {**shown, "solution": kept}, problem)
        return encoded, message, len(spans) - keep


def _cut(text: str, spans: Sequence[Span], keep: int, policy: CutPolicy) -> str:
    """`text` without the part that `policy` names, keeping about `keep` of its tokens, which stand at `spans`."""
    head = {"tail": keep, "head": 0, "middle": (keep + 1) // 2}[policy]
    tail = keep - head
    first_end = spans[head - 1][1] if head else 0
    # Several tokens may belong to one character; it must not stand on both sides of the mark.
    last_start = max(spans[len(spans) - tail][0], first_end) if tail else len(text)
    first, last = text[:first_end], text[last_start:]
    return " ".join(part for part in (first, CUT_MARK, last) if part)


def _within(offsets: Span, span: Span) -> Span:
    """Offsets relative to the beginning of `span`, cut to it."""
    return max(offsets[0], span[0]) - span[0], min(offsets[1], span[1]) - span[0]


def _check_question(pair: PromptPair, contexts: tuple[Encoded, Encoded], spans: tuple[Span, Span]) -> None:
    """Every token of the question is the same, over the same text, in both contexts, and outside the reference."""
    tokens = [
        [(encoded.ids[position], _within(encoded.offsets[position], span)) for position in positions]
        for encoded, span, positions in zip(
            contexts, spans, (pair.student_question, pair.teacher_question), strict=True
        )
    ]
    outside = [position not in pair.reference for position in pair.teacher_question]
    matches = [a == b and c for a, b, c in zip(*tokens, outside, strict=False)]
    if tokens[0] and all(matches) and len(tokens[0]) == len(tokens[1]):
        return
    broken = [*matches, False].index(False)
    around = [
        _text_around(encoded, positions[min(broken, len(positions) - 1)]) if positions else ""
        for encoded, positions in zip(contexts, (pair.student_question, pair.teacher_question), strict=True)
    ]
    raise AlignmentError(
        f"{_name(pair.problem)}: token {broken} of the question is not the same in both contexts: the student reads "
        f"{around[0]!r}, the teacher {around[1]!r}; put the same text, best a line break, on both sides of "
        "{question} in prompts.student and prompts.teacher"
    )


def _text_around(encoded: Encoded, position: int) -> str:
    start, end = encoded.offsets[position]
    return encoded.text[max(start - 20, 0) : end + 20]


def _name(problem: Problem) -> str:
    return f"problem {problem.id!r}" if problem.id else f"problem {problem.question[:40]!r}"
