r"""Where a completion has its answer: in the last \boxed{…} after the reasoning.

    boxed_answer(r"<think>\boxed{1}</think> \boxed{2}")                "2"
    boxed_answer(r"\boxed{-2} and \boxed{1}")                          "-2, 1"; "1" with Reading(boxes="last")
    marks_of(tokenizer.chat_template)                                  the marks of reasoning, this model's among them

A mark is a pair of texts that open and close reasoning. What is between them, or after one that was never closed, is no
answer. The last closing mark counts, also where the prompt held the opening one.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from opasd.errors import ConfigError

LONGEST_READ = 1 << 20
"""How many characters of an answer are read, from its end: more than any budget of tokens writes."""
LONGEST_UNBOXED = 10_000
"""How long a known answer may be that is looked through for boxes."""
MOST_BOXES = 100
"""How many boxes are joined at most."""

BoxPolicy = Literal["joined", "last"]
r"""`joined`: boxes with only a comma, a semicolon, `and` or `or` between them are one list. `last`: the last box."""


class Mark(NamedTuple):
    """The texts that open and close a model's reasoning."""

    opens: str
    closes: str


THINK = Mark("<think>", "</think>")
KNOWN_MARKS = (
    THINK,
    Mark("[THINK]", "[/THINK]"),
    Mark("<seed:think>", "</seed:think>"),
    Mark("<|channel|>analysis", "<|channel|>final"),
    Mark("<|channel|>commentary", "<|channel|>final"),
    Mark("<|channel>thought", "<channel|>"),
    Mark("◁think▷", "◁/think▷"),
    Mark("<thinking>", "</thinking>"),
    Mark("<thought>", "</thought>"),
    Mark("<reasoning>", "</reasoning>"),
    Mark("<|begin_of_thought|>", "<|end_of_thought|>"),
    Mark("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""The marks of common models. A completion is read with all of them where nothing says which model wrote it."""
BOX_TOKENS = Mark("<|begin_of_box|>", "<|end_of_box|>")
r"""Control tokens that some models (GLM) write in place of \boxed{ and }."""


class Reading(NamedTuple):
    """How an answer is found in a completion."""

    marks: tuple[Mark, ...] = KNOWN_MARKS
    boxes: BoxPolicy = "joined"


_TEMPLATE_MARK = re.compile(
    r"(<\||<|\[|◁)(/?)([\w:.-]*(?:think|thought|reason|analysis|scratchpad)[\w:.-]*)(\|>|>|\]|▷)", re.IGNORECASE
)
_BEGINNING = re.compile(r"(?<![a-zA-Z])(?:start|begin|open)(?![a-zA-Z])", re.IGNORECASE)
_BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\\\(?!boxed|fbox)|\\[{}]|[{}]")
_JOINT = re.compile(
    r"(?:[\s$~]|\\[()\[\],;! ]|\\q?quad)*(?:[,;]|(?:,\s*)?(?:\\text\s*\{\s*)?\b(?:and|or)\b(?:\s*\})?)"
    r"(?:[\s$~]|\\[()\[\],;! ]|\\q?quad)*"
)
_LONGEST_JOINT = 40


@lru_cache(maxsize=100)
def marks_of(template: str | None) -> tuple[Mark, ...]:
    """Return the known marks, and those that a chat template writes or reads.

    Those are any `<…think…>` with `</…think…>`, and any `<…start…think…>` with `<…end…think…>`.
    """
    written = ["".join(parts) for parts in _TEMPLATE_MARK.findall(template or "")]
    found = [Mark(text, close) for text in written for close in _closing(text) if close in written]
    return tuple(dict.fromkeys([*KNOWN_MARKS, *found]))


def _closing(opens: str) -> list[str]:
    """Return what may close reasoning that this text opens: another word for its beginning, or a slash."""
    edge, slash, name, other_edge = _TEMPLATE_MARK.fullmatch(opens).groups()  # pyright: ignore[reportOptionalMemberAccess]
    words = [
        f"{edge}{name[: word.start()]}{end.upper() if word[0].isupper() else end}{name[word.end() :]}{other_edge}"
        for word in _BEGINNING.finditer(name)
        for end in ("end", "stop", "close")
    ]
    return [] if slash else [f"{edge}/{name}{other_edge}", *words]


def parse_marks(texts: Sequence[str]) -> tuple[Mark, ...]:
    """Return the marks that a flag gives: an opening text and its closing one, and so on."""
    if len(texts) % 2 or not all(texts):
        raise ConfigError(f"--think-marks: got {', '.join(texts)!r:.80}; give OPEN,CLOSE, such as [THINK],[/THINK]")
    return tuple(Mark(*pair) for pair in zip(texts[::2], texts[1::2], strict=True))


def open_mark(prompt: str, marks: tuple[Mark, ...]) -> str:
    """Return the mark that opened reasoning which the prompt does not close, or nothing."""
    for mark in marks:
        if mark.opens in prompt.rpartition(mark.closes)[2]:
            return mark.opens
    return ""


def after_reasoning(text: str, marks: tuple[Mark, ...]) -> str:
    """Return what follows the last reasoning, without any that was opened again and never closed."""
    for closes in dict.fromkeys(mark.closes for mark in marks):
        text = text.rpartition(closes)[2]
    for mark in marks:
        text = text.partition(mark.opens)[0]
    return text


def boxed_answer(text: str, reading: Reading = Reading()) -> str | None:  # noqa: B008 (a tuple never changes)
    """Return the content of the last whole box after the reasoning, and of those joined to it; None without one."""
    return _boxed(after_reasoning(text, reading.marks)[-LONGEST_READ:], reading.boxes)


def unboxed(text: str) -> str:
    """Return the content of the boxes in a known answer, or the text itself, which may also be too long to have one."""
    return (_boxed(text, "joined") or text) if "box" in text and len(text) < LONGEST_UNBOXED else text


class _Box(NamedTuple):
    begin: int
    start: int
    """Where its content begins."""
    end: int


def _boxed(text: str, policy: BoxPolicy) -> str | None:
    if BOX_TOKENS.opens in text:
        text = text.replace(BOX_TOKENS.opens, r"\boxed{").replace(BOX_TOKENS.closes, "}")
    if "box" not in text or not (boxes := _whole_boxes(text)):
        return None
    # By where they start, backwards: a box either holds the one before or ends in front of it.
    boxes.sort(key=lambda box: -box.start)
    begin, parts = boxes[0].begin, [text[boxes[0].start : boxes[0].end].strip()]
    for box in boxes[1:] if policy == "joined" and parts[0] else []:
        gap = text[box.end + 1 : begin] if box.end < begin else None
        if gap is not None and (len(gap) > _LONGEST_JOINT or not _JOINT.fullmatch(gap) or len(parts) == MOST_BOXES):
            break
        begin = box.begin
        if gap is not None:
            parts.append(text[box.start : box.end].strip())
    return ", ".join(dict.fromkeys(part for part in reversed(parts) if part)) or parts[0]


def _whole_boxes(text: str) -> list[_Box]:
    boxes: list[_Box] = []
    open_braces: list[tuple[int, int] | None] = []  # by open brace: where its box begins and starts, if it is a box's
    for match in _BRACE.finditer(text):
        brace = match.group()
        if brace == "{":
            open_braces.append(None)
        elif len(brace) > 2:
            open_braces.append(match.span())
        elif brace == "}" and open_braces and (box := open_braces.pop()) is not None:
            boxes.append(_Box(*box, match.start()))
    return boxes
