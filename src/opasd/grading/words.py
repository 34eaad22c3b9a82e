r"""Answers that are not mathematics: an option's letter, words, and words in front of a value.

choice(r"\text{(C)} 12")                        "C"
in_words(r"\text{the Sun}", certain=True)       "sun"
without_leads(r"\text{The area is }12", "12")   ("12", "12")
"""

import re

from opasd.grading.quantities import FUNCTIONS, UNITS, is_mathematics
from opasd.grading.tidying import TEXT, is_balanced

# A letter that is nothing else than a choice, and a letter at the beginning of a choice.
_CHOICE = re.compile(
    r"\\text\s*\{\s*(?:\(([A-Z])\)\s*\}.*|([A-Z])\s*[.:]?\s*\})|\(\s*([A-Z])\s*\)", re.ASCII | re.DOTALL
)
_CHOICE_FIRST = re.compile(
    r"(?:\\text\s*\{\s*)?(?:(?:the\s+)?(?:correct\s+)?(?:option|choice|answer)(?:\s+is)?[:\s]*)?"
    r"(?:\\text\s*\{\s*)?(?:\(\s*([A-Z])\s*\)|\[\s*([A-Z])\s*\]|([A-Z])(?:[.:)]|(?=[}\s,]|\\text\s*\{[^a-zA-Z]|$)))",
    re.ASCII | re.IGNORECASE,
)
# What may follow the letter.
_OPERATOR = re.compile(r"[}\s]*(?:[-+=*/^<>!]|\\(?:cdot|times|div|leq?|geq?|lt|gt|neq?|in|pm|approx)(?![a-zA-Z]))")
_PROSE = re.compile(r"[}\s]*(?:\\text\s*\{\s*)?(?:[,;/&]|(?:or|and|is|but|not|nor)\b)", re.ASCII | re.IGNORECASE)
_OF_OTHERS = re.compile(r"[}\s]*(?:\\text\s*\{\s*)?(?:both|all|neither|none|only)\b", re.ASCII | re.IGNORECASE)
_LABEL = re.compile(r"(?<![\w\\])(?:\([A-J]\)|\[[A-J]\]|[A-J][.:](?=\s))", re.ASCII)
_LABEL_CLOSED = re.compile(r"[^(\[]*(?<![\w\\])[A-J]\)", re.ASCII)
_LETTER = re.compile(r"(?<![\w\\])[A-J](?!\w)", re.ASCII)
_LETTER_LOWER = re.compile(r"(?<![\w\\])[b-j](?!\w)", re.ASCII)
_RUNNING_TEXT = re.compile(r"\s[a-z]{2}", re.ASCII)
# Answers in words.
_WORDS = re.compile(r"[^\W\d_]+(?:(?:[' -]+|\s*,\s*)[^\W\d_]+)*")
_NEXT_WORDS = re.compile(r"\s*,\s*(?:and\s+)?|\s+and\s+", re.IGNORECASE)
_ARTICLE = re.compile(r"(?:an?|the) (?!(?:and|or)\b)(?=\w{2})")
_THE = re.compile(r"(?:\\text\s*\{\s*)?the (?=\w{2})", re.IGNORECASE)
# Not ab or abc, which are products.
_WORD_OF_PROSE = re.compile(
    r"(?<![\w\\{])(?:(?=\w*[aeiou])[A-Z]?[a-z]{4,}|[^\W\d_AEIOUaeiou][aeiou][a-z]"
    r"|[Tt]he|[Aa]nd|[Aa]ny|[Aa]re|[Aa]ll|odd|[Oo]ne|its|our|[Ii]f|is|of|[Nn]o|[Ii]n|on|or|to|as|by|[Ii]t|[Ww]e)(?!\w)"
)
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_CJK_PROSE = re.compile(r"[\u3400-\u9fff]{4}")
_SHORT_WORDS = {"no", "odd", "yes"}
_CJK = re.compile(r"[\u3400-\u9fff]")
# Words in front of a value.
_LEADING_TEXT = re.compile(r"\\text\s*\{([^{}\d]*[a-zA-Z]{2}[^{}\d]*)\}\s*([:=]?)\s*(?=[\d(\[|\\+-]|\.\d)(?!\\text)")
_HARMLESS = re.compile(
    r"(?!.*(?:\b(?:not|than|whose|which)\b|n't))(?:.*(?:[:=]|\b(?:(?:is|are)(?: equal to)?|equals))|(?:(?:the|an?|so"
    r"|thus|hence|therefore|final|correct|answers?|results?|solutions?|values?|total|both|exactly|about|roughly|approximately|day"
    r"|year|january|february|march|april|may|june|july|august|september|october|november|december)\b[\s,]*)+)\s*",
    re.IGNORECASE | re.DOTALL,
)
_PLAIN_LEAD = """
a an and answer answers are about approximately roughly both correct equal equals exactly final for hence in is it
number of result results so solution solutions the therefore thus to total value values we get have there ways
"""
_NO_NAMES = set(_PLAIN_LEAD.split())
_SENTENCE = re.compile(r"\\text\s*\{([^{}\d]*[a-zA-Z]{2}[^{}\d]*)\}\s*(?=[a-zA-Z])(?!\\text)")
_SENTENCE_VERB = re.compile(
    r"(?!.*(?:\b(?:not|than|whose|which)\b|n't)).*(?:[:=]|\b(?:(?:is|are)(?: equal to)?|equals))\s*",
    re.IGNORECASE | re.DOTALL,
)
_ANSWER_IS = re.compile(
    r"(\\text\s*\{)?\s*(?:the )?(?:final |correct )?answer(?: is:?|:)\s*"
    r"(?:(\})\s*(?=[a-zA-Z][^{}\\]*$)|(?=[^{}]*[^{}\s][^{}]*\}?$))",
    re.IGNORECASE,
)
_INNER_WORDS = re.compile(r"\\text\s*\{([^{}]*[a-zA-Z]{2}[^{}]*)\}(?!\s*[(_^{])")
_LEADING_WORD = re.compile(r"^\\text\s*\{\s*([^\W\d_]{2,})\s*\}\s*(?=\d)")
_LEADING_OPTION = re.compile(
    r"^\\text\s*\{\s*(?:\([A-J]\)|[A-J][.:)])\s*\}\s*(?=[\d(\[\\+-])(?!\\text)|^\([A-J]\)\s*(?=\d|\\\$|\\frac|\\sqrt)"
)
_CJK_LEAD = re.compile(
    r"^(?![\u3400-\u9fff]*(?:[不非负至]|[大小多少高低]于))[\u3400-\u9fff]*?"
    r"(?:[是为得共约第]|等于|答案|[\u3400-\u9fff]\s*[:=])\s*(?=[^\u3400-\u9fff\s])"
)


def without_answer_is(text: str) -> str:
    """Remove `The answer is` in front of words or of a single letter."""
    if (lead := _ANSWER_IS.match(text)) is None:
        return text
    opened, closed = lead.groups()
    return f"\\text{{{text[lead.end() :]}" if opened and not closed else text[lead.end() :]


def choice(text: str, *, marked: bool = False) -> str | None:
    r"""Return the letter of a multiple-choice answer, `(C)`, `C.`, `\text{(C)} 12`.

    `marked`: only of an answer that can be nothing else.
    """
    first = _CHOICE_FIRST.match(text)
    if first is None or (marked and not _CHOICE.fullmatch(text)):
        return None
    letter, rest = next(filter(None, first.groups())), text[first.end() :]
    # After a marked letter, `(C)`, `C.`, `C:`, comes the option's own text. It may have letters but no other marked
    # one, unless it speaks of others, `both (A) and (B)`. After a bare letter, or within a sentence, there must be no
    # other letter at all. A bare letter in a sum or an equation, `b - 1`, is a variable.
    labelled = text[first.end() - 1] in ".:)]"
    if not labelled and _OPERATOR.match(rest):
        return None
    if labelled and not _PROSE.match(rest):
        other = None if _OF_OTHERS.match(rest) else _LABEL.search(rest) or _LABEL_CLOSED.match(rest)
    elif letter.islower():
        other = _LETTER_LOWER.search(rest) or _LETTER.search(rest) or (letter == "a" and _RUNNING_TEXT.match(rest))
    else:
        other = _LETTER.search(rest)
    return None if other else letter.upper()


def in_words(text: str, *, certain: bool) -> str | None:
    """Return an answer in words, for comparison; `certain`: only if it cannot be a product of variables."""
    marked = _is_marked(text)
    content = " ".join((TEXT.sub(r"\1", text) if marked else text).split()).removesuffix(".")
    if not _WORDS.fullmatch(content):
        return None
    items = _NEXT_WORDS.split(content)
    # A letter alone in a list may be a variable.
    content = " and ".join(sorted(item if len(item) == 1 < len(items) else _plain_words(item) for item in items))
    words = content.split()
    long = "," not in text and min(map(len, words)) > 1 and len(content) > 3 and FUNCTIONS.isdisjoint(words)
    sure = marked or has_article(text) or long or content in _SHORT_WORDS or _CJK.search(content)
    return content if sure or not certain else None


def _plain_words(text: str) -> str:
    text = _ARTICLE.sub("", text.casefold())
    return text.removesuffix("s") if text.startswith("no ") else text  # no solution, no solutions


def _is_marked(text: str) -> bool:
    """Return whether an answer is words in text commands alone."""
    return TEXT.search(text) is not None and not TEXT.sub("", text).strip(" ,")


def words_apart(text: str) -> str:
    r"""Return \text{A, B and C} as \text{A}, \text{B}, \text{C}; any other text as it is."""
    marked = TEXT.fullmatch(text)
    if marked is None or not _WORDS.fullmatch(marked[1].strip()):
        return text
    return ", ".join(f"\\text{{{item}}}" for item in _NEXT_WORDS.split(marked[1].strip()))


def is_prose(text: str) -> bool:
    """Return whether an answer has two words or more that are neither mathematics nor units."""
    return len(_words(text)) > 1 or _CJK_PROSE.search(text) is not None


def has_words(text: str) -> bool:
    """Return whether a word is in the text that is neither mathematics nor a unit, with or without a text command."""
    return bool(_words(text))


def _words(text: str) -> list[str]:
    words = _WORD_OF_PROSE.findall(_COMMAND.sub(" ", TEXT.sub(r" \1 ", text)))
    return [word for word in words if not is_mathematics(word) and word.removesuffix("s") not in UNITS]


def has_article(text: str) -> bool:
    """Return whether an article shows that the text is words."""
    return _THE.match(text) is not None


def starts_with_words(text: str) -> bool:
    """Return whether words are in front of a value; a parser would take them for variables."""
    return _LEADING_TEXT.match(text) is not None


def differ_in_first_word(gold: str, answer: str) -> bool:
    """Return whether both begin with a word before a number, and with another one: June 20 and July 20."""
    words = [word[1].casefold() for word in map(_LEADING_WORD.match, (gold, answer)) if word]
    return len(set(words)) > 1


def _without_sentence(text: str) -> str:
    """Remove `The answer is` in front of an expression that begins with a letter."""
    lead = _SENTENCE.match(text)
    return text[lead.end() :] if lead and _SENTENCE_VERB.fullmatch(lead[1]) else text


def around_words(text: str) -> tuple[list[str], list[str]]:
    """Return the words inside an expression, and what is before, between and after them.

    a=2 when b=3: ["when"], ["a=2", "b=3"]. Words at an end are not inside.
    """
    words, parts, start = [], [], 0
    for match in _INNER_WORDS.finditer(text):
        before, after = text[start : match.start()].strip(), text[match.end() :].strip()
        in_words = len(match[1].split()) > 1 or not is_mathematics(match[1])
        if before and after and is_balanced(text[: match.start()]) and in_words:
            words.append(" ".join(match[1].casefold().split()))
            parts.append(before)
            start = match.end()
    return words, [*parts, text[start:].strip()]


def _named(lead: str) -> set[str]:
    """Return the words in front of a value that say what it is."""
    return {*re.findall(r"[^\W\d_]+", lead.casefold())} - _NO_NAMES


def without_leads(gold: str, answer: str) -> tuple[str, str]:
    """Remove what is in front and changes nothing: an option's letter, `The answer is`, the same words in both."""
    gold, answer = (_CJK_LEAD.sub("", _LEADING_OPTION.sub("", t, count=1), count=1) for t in (gold, answer))
    gold, answer = (_without_sentence(text) for text in (gold, answer))
    leads = _LEADING_TEXT.match(gold), _LEADING_TEXT.match(answer)
    same = len({lead[1].casefold().strip() if lead else "" for lead in leads}) == 1
    named = [_named(lead[1]) if lead else set[str]() for lead in leads]
    if all(named) and named[0].isdisjoint(named[1]):
        return gold, answer  # the area and the perimeter
    gold, answer = (
        text[lead.end() :] if lead and (same or _HARMLESS.fullmatch(lead[1] + lead[2])) else text
        for lead, text in zip(leads, (gold, answer), strict=True)
    )
    return gold, answer
