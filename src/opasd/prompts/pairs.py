"""Build the two contexts of a problem: the student reads the problem, the teacher also its solution or answer.

    builder = PromptBuilder(tokenizer, config.prompts)
    pairs, report = builder.pairs(problems, on_bad_row="skip")

Token ids are made here, once. All later code works on them and on the token ranges of a `PromptPair`. The problem, the
instruction and the generation prompt are never cut. A solution that does not fit is cut as `cut_solution` says, with
`CUT_MARK` where text was removed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from opasd.choices import CutPolicy, Role, StopOrSkip
from opasd.config import PromptConfig
from opasd.config.method import REFERENCE_FIELDS, shown_fields
from opasd.data.problems import Problem
from opasd.errors import AlignmentError, ConfigError, PromptError
from opasd.prompts.chat import THINK_TAGS, Chat, Encoded, Request
from opasd.prompts.contexts import PromptPair, PromptPairs, PromptReport
from opasd.prompts.wording import Message, Span, Wordings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CUT_MARK = "[...]"
_BATCH = 64
"""Problems whose contexts are tokenised in one call."""

Contexts = Mapping[Request, Encoded]
"""Contexts that were tokenised in advance."""
_NO_CONTEXTS: Contexts = {}


@dataclass(frozen=True)
class _Draft:
    """The messages of a problem, before they are tokenised."""

    question: str
    neutralised: bool
    student: Message
    teachers: Mapping[str, "_TeacherDraft"]
    """By the key of the reference's wording."""


class _TeacherDraft(NamedTuple):
    """A teacher's message, and the texts that its reference shows, by field."""

    key: str
    shown: Mapping[str, str]
    message: Message


class PromptBuilder:
    """Turns problems into pairs of contexts with one tokenizer and one wording."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", config: PromptConfig) -> None:
        self.config = config
        self._tokenizer = tokenizer
        self._chat = Chat(tokenizer, system=config.system, options=config.template_options)
        self._wordings = Wordings.of(config)
        self._check_own_text()

    def pair(self, problem: Problem, contexts: Contexts = _NO_CONTEXTS) -> PromptPair:
        """Return the two contexts of `problem`; raise PromptError or AlignmentError if it cannot be used."""
        with _naming(problem):
            draft = self._draft(problem)
            student = self._encode("student", draft.student, self.config.student_thinking, contexts)
            if len(student.ids) > self.config.max_student_tokens:
                raise PromptError(
                    f"the student's context has {len(student.ids)} tokens, max_student_tokens = "
                    f"{self.config.max_student_tokens}, and a problem is never cut; raise the limit or skip the row",
                    "student_too_long",
                )
            pair, *own = (self._with_teacher(problem, draft, key, student, contexts) for key in draft.teachers)
            return replace(pair, attention=own[0]) if own else pair

    def _with_teacher(
        self, problem: Problem, draft: _Draft, key: str, student: Encoded, contexts: Contexts
    ) -> PromptPair:
        """Return the student's context beside the teacher's with one of the references."""
        with nullcontext() if key == "reference" else _prefix(f"with prompts.{key}"):
            teacher, message, cut = self._fit_teacher(draft, draft.teachers[key], contexts)
            spans = (student.span(draft.student.spans["question"]), teacher.span(message.spans["question"]))
            pair = PromptPair(
                problem=problem,
                student_ids=student.ids,
                teacher_ids=teacher.ids,
                student_question=student.tokens(spans[0]),
                teacher_question=teacher.tokens(spans[1]),
                reference=teacher.tokens_touching(teacher.span(message.spans["reference"])),
                neutralised=draft.neutralised,
                solution_tokens_cut=cut,
                student_template=student.template,
                shown=_own_text(teacher, message),
            )
            _check_question(pair, (student, teacher), spans)
            return pair

    def pairs(
        self, problems: Iterable[Problem], *, on_bad_row: StopOrSkip = "stop"
    ) -> tuple[PromptPairs, PromptReport]:
        """Return the pairs of all usable problems, in order, and counts of the rows."""
        pairs, report = PromptPairs(), PromptReport()
        remaining = iter(problems)
        while batch := list(islice(remaining, _BATCH)):
            contexts = self._encode_batch(batch)
            for problem in batch:
                try:
                    pair = self.pair(problem, contexts)
                except (PromptError, AlignmentError) as error:
                    reason = error.reason if isinstance(error, PromptError) else "alignment"
                    expected = reason == "solution_too_long" and self.config.cut_solution == "skip"
                    if on_bad_row == "stop" and not expected:
                        raise
                    report.skip(problem, reason)
                else:
                    report.keep(pair)
                    pairs.append(pair)
        return pairs, report

    def student_ids(self, question: str, *, thinking: bool | None = None) -> tuple[int, ...]:
        """Return the student's context of a bare question of any length, as evaluation asks it."""
        thinking = self.config.student_thinking if thinking is None else thinking
        with _naming(Problem(question)):
            return self._encode("student", self._student_message(self._neutralise(question)), thinking).ids

    def solution_ids(self, problem: Problem) -> tuple[int, ...]:
        """Return a problem's solution as the student would have written it: its text, and the token that ends it."""
        with _naming(problem):
            text = self._neutralise(problem.solution)
            if not text.strip():
                raise PromptError("there is no solution to learn from; skip the row", "missing")
            ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
            return (*ids, self._tokenizer.eos_token_id)  # pyright: ignore[reportReturnType]

    def _encode_batch(self, problems: Iterable[Problem]) -> Contexts:
        """Tokenise the contexts of several problems in one call; leave out those that `pair` refuses."""
        requests: list[Request] = []
        for problem in problems:
            with suppress(PromptError):
                draft = self._draft(problem)
                requests.append((draft.student.text, self.config.student_thinking))
                requests += [(one.message.text, self.config.teacher_thinking) for one in draft.teachers.values()]
        return self._chat.encode_many(requests)

    def _draft(self, problem: Problem) -> _Draft:
        question = self._neutralise(problem.question)
        changed, teachers = question != problem.question, dict[str, _TeacherDraft]()
        for key, reference in self.config.references().items():
            original = self._reference_texts(problem, key, reference)
            shown = {name: self._neutralise(text) for name, text in original.items()}
            changed |= shown != original
            teachers[key] = _TeacherDraft(key, shown, self._teacher_message(question, key, shown))
        return _Draft(question, changed, self._student_message(question), teachers)

    def _reference_texts(self, problem: Problem, key: str, reference: str) -> dict[str, str]:
        """Return the texts that a reference shows, by field."""
        fields = shown_fields(reference)
        texts = {"solution": problem.solution, "answer": problem.answer, "pointers": problem.pointers}
        for name in sorted(fields):
            if texts[name] is None:
                raise PromptError(
                    f"there is no {{{name}}}, which prompts.{key} shows; name its column in columns.{name} of "
                    "these data, or skip the row",
                    "missing",
                )
        # A reference that began with white space would share a token with the question's line break, which the student
        # does not have.
        shown = {name: texts[name] or "" for name in fields}
        return {name: text.lstrip() if reference.startswith(f"{{{name}}}") else text for name, text in shown.items()}

    def _check_own_text(self) -> None:
        """Refuse a wording that would itself break the roles. Think tags in it may be intended."""
        texts = {
            **self._wordings.literals(),
            "instruction": self.config.instruction,
            "system": self.config.system or "",
        }
        for name, text in texts.items():
            for control in sorted(self._chat.control_strings - THINK_TAGS):
                if control in text:
                    raise ConfigError(
                        f"prompts.{name} contains {control!r}, which the chat template uses between turns; remove it"
                    )

    def _neutralise(self, text: str) -> str:
        """Return a row's text without control strings, or refuse it as `imitation` says."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(f"not valid Unicode: {error}; repair or skip the row", "text") from None
        control = self._chat.find_control_string(text)
        if control is None:
            return text
        if self.config.imitation == "refuse":
            at = text.index(control)
            raise PromptError(
                f"the text imitates the chat template with {control!r} in {text[max(at - 30, 0) : at + 50]!r}; remove "
                "it, or set imitation: neutralise",
                "imitation",
            )
        return self._chat.neutralise(text)

    def _encode(self, role: Role, message: Message, thinking: bool, contexts: Contexts = _NO_CONTEXTS) -> Encoded:
        try:
            encoded = contexts.get((message.text, thinking)) or self._chat.encode(message.text, thinking=thinking)
        except PromptError as error:
            raise PromptError(f"{role}'s context: {error}", error.reason) from error
        for name in ("question", *sorted(REFERENCE_FIELDS)):
            # A normaliser, or text that joins with its neighbours, can still make a control token.
            if name in message.spans and (
                control := self._chat.find_control_token(encoded, encoded.span(message.spans[name]))
            ):
                raise PromptError(
                    f"the {name} makes the tokenizer emit the control token {control!r}; remove that text or skip the "
                    "row",
                    "imitation",
                )
        if role == "student" and not encoded.tokens(encoded.span(message.spans["question"])):
            raise PromptError("the question leaves no token; repair or skip the row", "text")
        return encoded

    def _student_message(self, question: str) -> Message:
        return self._wordings.student.fill({"question": question, "instruction": self.config.instruction})

    def _teacher_message(self, question: str, key: str, shown: Mapping[str, str]) -> Message:
        reference = self._wordings.references[key].fill(shown)
        message = self._wordings.teacher.fill(
            {"question": question, "reference": reference.text, "instruction": self.config.instruction}
        )
        start = message.spans["reference"][0]
        inner = {name: (start + first, start + last) for name, (first, last) in reference.spans.items()}
        return Message(message.text, {**message.spans, **inner})

    def _fit_teacher(self, draft: _Draft, teacher: _TeacherDraft, contexts: Contexts) -> tuple[Encoded, Message, int]:
        """Return the teacher's context within its limit, its message, and how many solution tokens were cut."""
        limit, policy, thinking = self.config.max_teacher_tokens, self.config.cut_solution, self.config.teacher_thinking
        message = teacher.message
        encoded = self._encode("teacher", message, thinking, contexts)
        if len(encoded.ids) <= limit:
            return encoded, message, 0
        too_long = f"the teacher's context has {len(encoded.ids)} tokens, max_teacher_tokens = {limit}"
        if "solution" not in teacher.shown:
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
        # Every pass keeps fewer tokens, so this ends; it overshoots only by the tokens that the new ends become.
        while len(encoded.ids) > limit:
            keep -= len(encoded.ids) - limit
            solution = _cut(teacher.shown["solution"], spans, keep, policy) if keep > 0 else ""
            if not solution.replace(CUT_MARK, "").strip():
                raise PromptError(f"{too_long}, and nothing of its solution fits; raise the limit", "solution_too_long")
            message = self._teacher_message(draft.question, teacher.key, {**teacher.shown, "solution": solution})
            encoded = self._encode("teacher", message, thinking)
        return encoded, message, len(spans) - keep


def _own_text(teacher: Encoded, message: Message) -> range:
    """Return the tokens from the first to the last text that the reference shows."""
    spans = [teacher.span(message.spans[name]) for name in sorted(REFERENCE_FIELDS) if name in message.spans]
    return (
        teacher.tokens_touching((min(span[0] for span in spans), max(span[1] for span in spans))) if spans else range(0)
    )


def _cut(text: str, spans: Sequence[Span], keep: int, policy: CutPolicy) -> str:
    """Return `text` without the part that `policy` names; about `keep` of its tokens, which lie at `spans`, remain."""
    head = {"tail": keep, "head": 0, "middle": (keep + 1) // 2}[policy]
    tail = keep - head
    first_end = spans[head - 1][1] if head else 0
    # Several tokens may belong to one character, which must not appear on both sides of the mark.
    last_start = max(spans[len(spans) - tail][0], first_end) if tail else len(text)
    return " ".join(part for part in (text[:first_end], CUT_MARK, text[last_start:]) if part)


def _within(offsets: Span, span: Span) -> Span:
    """Return offsets relative to the beginning of `span`, limited to it."""
    return max(offsets[0], span[0]) - span[0], min(offsets[1], span[1]) - span[0]


def _check_question(pair: PromptPair, contexts: tuple[Encoded, Encoded], spans: tuple[Span, Span]) -> None:
    """Check that both contexts have the same question tokens over the same text, outside the reference."""
    positions = (pair.student_question, pair.teacher_question)
    student, teacher = (
        [(encoded.ids[position], _within(encoded.offsets[position], span)) for position in question]
        for encoded, span, question in zip(contexts, spans, positions, strict=True)
    )
    outside = [position not in pair.reference for position in pair.teacher_question]
    equal = [a == b and c for a, b, c in zip(student, teacher, outside, strict=False)]
    if student and all(equal) and len(student) == len(teacher):
        return
    broken = [*equal, False].index(False)
    around = [
        _text_around(encoded, question[min(broken, len(question) - 1)]) if question else ""
        for encoded, question in zip(contexts, positions, strict=True)
    ]
    raise AlignmentError(
        f"token {broken} of the question is not the same in both contexts: the student reads {around[0]!r}, the "
        f"teacher {around[1]!r}; put the same text, best a line break, on both sides of "
        "{question} in prompts.student and prompts.teacher"
    )


def _text_around(encoded: Encoded, position: int) -> str:
    start, end = encoded.offsets[position]
    return encoded.text[max(start - 20, 0) : end + 20]


def _naming(problem: Problem) -> AbstractContextManager[None]:
    """Put the problem's name before the message of an error."""
    return _prefix(f"problem {problem.id!r}" if problem.id else f"problem {problem.question[:40]!r}")


@contextmanager
def _prefix(name: str) -> Iterator[None]:
    try:
        yield
    except PromptError as error:
        raise PromptError(f"{name}: {error}", error.reason) from error
    except AlignmentError as error:
        raise AlignmentError(f"{name}: {error}") from error
