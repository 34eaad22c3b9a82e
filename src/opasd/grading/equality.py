r"""Are two answers equal? What an answer is made of is decided here; what two expressions are worth is the caller's.

    equal(r"\{1, 2\}", "2, 1", decide)        sets and lists: any order
    equal("(1, 2)", "(2, 1)", decide)         tuples, points and intervals: in order, and brackets matter
    equal("x = 5", r"5\text{ cm}", decide)    a name or a unit that one side leaves out does not matter

`decide(gold, found)` is asked about two single expressions that are neither the same text nor two numbers. It may say
None, for unknown, and then so may `equal`: that is how the quick grader of training and the one with a computer algebra
system share every rule but the algebra.
"""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from opasd.grading.quantities import FUNCTIONS, Unit, number, quantity

Decide = Callable[[str, str], bool | None]
LONGEST = 1000
MOST_ITEMS = 100
"""A longer answer, or one of more items, is compared as text alone."""
DEEPEST = 50
"""More brackets in one another, or brackets that do not match, are no expression."""

_CHARACTERS = str.maketrans(
    {chr(wide): chr(wide - 0xFEE0) for wide in range(0xFF01, 0xFF5F)}  # full-width ASCII
    | {"｛": "\\{", "｝": "\\}", "＄": "\\$", "￥": "¥", "￡": "£"}
    | dict(zip("【】−–。、　", "[]--.,\u0020", strict=True))
    | {"²": "^2", "³": "^3", "½": "\\frac12 ", "⅓": "\\frac13 ", "⅔": "\\frac23 ", "¼": "\\frac14 ", "¾": "\\frac34 "}
    | {"π": "\\pi ", "∞": "\\infty ", "×": "\\times ", "·": "\\cdot ", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne "}
    | {"≈": "\\approx ", "∪": "\\cup ", "∈": "\\in ", "∅": "\\emptyset ", "±": "\\pm ", "∓": "\\mp "}
)
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|(\d+|\w))")
_EMPTY_SET = re.compile(r"\\varnothing(?![a-zA-Z])|\\\{\s*\\\}")
_CHOOSE = re.compile(r"(?<!\\)\{([^{}\\]*)\\choose(?![a-zA-Z])([^{}\\]*)\}|^\s*(\w+)\s*\\choose\s+(\w+)\s*$")
_ROW_GAP = re.compile(r"\\\\\[\s*-?[\d.]+\s*(?:pt|em|ex|mm|cm)\s*\]")
_LEADING_TEXT = re.compile(r"\\text\s*\{([^{}\d]*[a-zA-Z]{2}[^{}\d]*)\}\s*([:=]?)\s*(?=[\d(\[\\+-])(?!\\text)")
_HARMLESS = re.compile(
    r"(?!.*(?:\b(?:not|than|whose|which)\b|n't))(?:.*(?:[:=]|\b(?:(?:is|are)(?: equal to)?|equals))|(?:(?:the|an?|so"
    r"|thus|hence|therefore|final|correct|answers?|results?|solutions?|values?|total|both|exactly|about|approximately|day|year"
    r"|january|february|march|april|may|june|july|august|september|october|november|december)\b[\s,]*)+)\s*",
    re.IGNORECASE | re.DOTALL,
)
_LEADING_WORD = re.compile(r"^\\text\s*\{\s*([^\W\d_]{2,})\s*\}\s*(?=\d)")
_LEADING_OPTION = re.compile(
    r"^\\text\s*\{\s*(?:\([A-J]\)|[A-J][.:)])\s*\}\s*(?=[\d(\[\\+-])(?!\\text)|^\([A-J]\)\s*(?=\d|\\\$|\\frac|\\sqrt)"
)
_LOOKS = re.compile(
    r"(?<!\\)\$|(?<!\\)\\[()\[\]]|\\(?:left|right|middle|displaystyle|limits|[bB]igg?[lr]?)(?![a-zA-Z])\.?|\*\*"
    r"|\\(?:text)?color\s*\{[^{}]*\}"
)
_SPACE = re.compile(r"(?<!\\)\\[,;:! ]|\\(?:quad|qquad|,)(?![a-zA-Z])|~|\s+")
_DIGIT_GAP = re.compile(r"(?<=\d),\\!\s*(?=\d{3})|(?<=\d)\{,\}(?=\d{3})|(?<=\d)\\[,;:!](?=\d{3}(?!\d))")
_SPACED_NUMBER = re.compile(r"[-+]?\d{1,3}(?: \d{3})+", re.ASCII)
_FONT = re.compile(
    r"\\(?:textbf|textit|textnormal|textrm|mathbf|mathit|mathsf|boldsymbol|bm|emph|mbox|mathrm|underline)\s*\{"
)
_TOKEN = (
    r"(\d|\\(?:alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|pi|rho|sigma|tau"
    r"|phi|varphi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Pi|Sigma|Phi|Psi|Omega)(?![a-zA-Z]))"
)
_FRACTION = re.compile(rf"\\[dtc]?frac\s*(?:{_TOKEN}\s*(?:{_TOKEN}|(?=\{{))|(?=\{{))")
_FRACTION_OVER_TOKEN = re.compile(rf"(\\frac\s*\{{[^{{}}]*\}})\s*{_TOKEN}")
_ABOUT = re.compile(r"^\s*([a-zA-Z]?)\s*\\approx(?![a-zA-Z])")
_TEXT = re.compile(r"\\(?:text|operatorname)\s*\{([^{}]*)\}")
_REMOVABLE_SPACE = re.compile(r"(?<!\d) | (?!\d)")
_CHOICE = re.compile(
    r"\\text\s*\{\s*(?:\(([A-Z])\)\s*\}.*|([A-Z])\s*[.:]?\s*\})|\(\s*([A-Z])\s*\)", re.ASCII | re.DOTALL
)
_CHOICE_FIRST = re.compile(
    r"(?:\\text\s*\{\s*)?(?:(?:the\s+)?(?:correct\s+)?(?:option|choice|answer)(?:\s+is)?[:\s]*)?"
    r"(?:\\text\s*\{\s*)?(?:\(\s*([A-Z])\s*\)|\[\s*([A-Z])\s*\]|([A-Z])(?:[.:)]|(?=[}\s,]|\\text\s*\{[^a-zA-Z]|$)))",
    re.ASCII | re.IGNORECASE,
)
_OPERATOR = re.compile(r"[}\s]*(?:[-+=*/^<>!]|\\(?:cdot|times|div|leq?|geq?|lt|gt|neq?|in|pm|approx)(?![a-zA-Z]))")
_PROSE = re.compile(r"[}\s]*(?:\\text\s*\{\s*)?(?:[,;/&]|(?:or|and|is|but|not|nor)\b)", re.ASCII | re.IGNORECASE)
_OF_OTHERS = re.compile(r"[}\s]*(?:\\text\s*\{\s*)?(?:both|all|neither|none|only)\b", re.ASCII | re.IGNORECASE)
_LABEL = re.compile(r"(?<![\w\\])(?:\([A-J]\)|\[[A-J]\]|[A-J][.:](?=\s))", re.ASCII)
_LABEL_CLOSED = re.compile(r"[^(\[]*(?<![\w\\])[A-J]\)", re.ASCII)
_LETTER = re.compile(r"(?<![\w\\])[A-J](?!\w)", re.ASCII)
_LETTER_LOWER = re.compile(r"(?<![\w\\])[b-j](?!\w)", re.ASCII)
_RUNNING_TEXT = re.compile(r"\s[a-z]{2}", re.ASCII)
_WORDS = re.compile(r"[^\W\d_]+(?:[' -]+[^\W\d_]+)*")
_ARTICLE = re.compile(r"(?:an?|the) (?=\w{2})")
_THE = re.compile(r"(?:\\text\s*\{\s*)?the (?=\w{2})", re.IGNORECASE)
_SHORT_WORDS = {"no", "odd", "yes"}
_CJK = re.compile(r"[\u3400-\u9fff]")
_CJK_LEAD = re.compile(
    r"^(?![\u3400-\u9fff]*(?:[不非负至]|[大小多少高低]于))[\u3400-\u9fff]*?"
    r"(?:[是为得共约第]|等于|答案|[\u3400-\u9fff]\s*[:=])\s*(?=[^\u3400-\u9fff\s])"
)
_AND = re.compile(
    r"\\text\s*\{\s*,?\s*(?:and|or)\s*\}|(\\text\s*\{[^{}]*\})|(?<![a-zA-Z\\{])(?:and|or)(?![a-zA-Z}])|[或和]", re.ASCII
)
_MARK = re.compile(r"\\[{}]|\\[lr]brace(?![a-zA-Z])|\\(?:begin|end)\s*\{\w+\*?\}|\\[lr]angle(?![a-zA-Z])|[()\[\]{},;]")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])|(?<![\d.,(\[])\d{1,3}(?:,\d{3})+(?=, )", re.ASCII)
_NAMED = re.compile(
    r"([a-zA-Z]\w?|\\[a-zA-Z]+|[a-zA-Z]\s*\([a-zA-Z]\))((?:_(?:\w+|\{\w+\}))?)\s*=(?!=)\s*(.+)", re.DOTALL
)
_MEMBER = re.compile(r"[a-zA-Z]\s*(?:\\in(?![a-zA-Z])|∈)\s*(.+)", re.DOTALL)
_NAMED_WHOLE = re.compile(
    r"(?:\([^()=]*\)|\\vec\s*\{?\w\}?|[a-zA-Z]\w?)\s*=\s*(?=[(\[]|\\\{|\\langle|\\begin)(.+)", re.DOTALL
)
_SUCH_THAT = re.compile(r"[a-zA-Z]\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?(?:\||:|\\mid|\\vert)\s*(.+)", re.DOTALL)
_LAST_EQUAL = re.compile(r"(?<![<>!\\])=")
_RELATION = re.compile(r"[<>≤≥∪∈]|\\(?:leq?|geq?|leqslant|geqslant|lt|gt|in|cup|mathbb|setminus)(?![a-zA-Z])")
_PERCENT = re.compile(r"(.*?\S)\s*(?:\\%|%|\\text\s*\{\s*per ?cent(?:age)?\s*\}|per ?cent)", re.DOTALL | re.IGNORECASE)
_BASE = re.compile(r"(\w+|\(\d\w*\)|\{\d\w*\})_(\d+|\{\w+\}|\{\(\w+\)\}|\(\d+\))", re.ASCII)
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"} | {
    "ten": "10", "eleven": "11", "twelve": "12", "sixteen": "16"
}  # fmt: skip
_STERLING = re.compile(r"£|\\pounds(?![a-zA-Z])")
_POUNDS = re.compile(r"(?<![a-zA-Z\\])pounds?(?![a-zA-Z])", re.IGNORECASE)
_INFINITY = re.compile(r"\\infty|infinity")
_COLUMN = re.compile(r"\\begin\s*\{([pb]matrix)\}((?:(?!\\begin|&).)*)\\end\s*\{\1\}", re.DOTALL)
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_OPEN, _CLOSE = ("(", "[", "{", "\\{", "\\lbrace", "\\langle"), (")", "]", "}", "\\}", "\\rbrace", "\\rangle")
_BRACKET = {"\\{": "{", "\\lbrace": "{", "\\langle": "(", "\\}": "}", "\\rbrace": "}", "\\rangle": ")"}


class Parts(NamedTuple):
    """An answer's items and the brackets around them: "" for a bare list, "{}" for a set, "(]" for an interval.

    `interval`: it cannot be a point, because a variable is in it, or it is half open or has no end.
    """

    text: str
    brackets: str
    items: tuple[str, ...]
    interval: bool


def equal(gold: str, found: str, decide: Decide) -> bool | None:
    """Whether `found` answers `gold`; None where `decide` left it open. An empty answer equals nothing."""
    if any(len(text) > LONGEST or text.count(",") + text.count(";") > MOST_ITEMS for text in (gold, found)):
        return gold.strip() == found.strip()
    gold, found = tidy(gold), tidy(found)
    if not bare(gold) or not bare(found):
        return False
    if bare(gold) == bare(found):
        return True
    if (letter := choice(gold, marked=True)) is not None:
        return letter == choice(found)
    if (words := _words(gold, certain=not _THE.match(found))) is not None:
        return words == _words(found, certain=False)
    leading = [_LEADING_WORD.match(text) for text in (gold, found)]
    if len({word[1].casefold() for word in leading if word}) > 1:
        return False  # June 20 and July 20
    gold, found = _without_leads(gold, found)
    try:
        return _same(_parts(gold), _parts(found), decide)
    except RecursionError:
        return None


def tidy(text: str) -> str:
    """The answer without what only changes how it looks; one space where there was any."""
    text = _EMPTY_SET.sub(r"\\emptyset", text.translate(_CHARACTERS))
    text = _ROW_GAP.sub(r"\\\\", _ROOT.sub(lambda root: rf"\sqrt{{{root[1] or root[2]}}}", text))
    text = _CHOOSE.sub(lambda of: rf"{{\binom{{{of[1] or of[3]}}}{{{of[2] or of[4]}}}}}", text)
    text = _DIGIT_GAP.sub(lambda gap: "" if gap[0].startswith("\\") else ",", text)
    text = _FONT.sub(r"\\text{", _SPACE.sub(" ", _LOOKS.sub("", text)))
    text = _FRACTION.sub(_braced_fraction, text)
    text = _ABOUT.sub(r"\1=", _FRACTION_OVER_TOKEN.sub(r"\1{\2}", text), count=1)
    text = text.strip()
    text = text if text == "=" else text.removeprefix("=").rstrip(".").strip()
    if text.startswith("{") and (inside := _inside(text)) and inside[0] == "":
        text = inside[1]
    if (marked := _TEXT.fullmatch(text)) and any(character.isdigit() for character in marked[1]):
        text = marked[1].strip()
    return text.replace(" ", "") if _SPACED_NUMBER.fullmatch(text) else text


def _braced_fraction(found: re.Match[str]) -> str:
    above, below = found.groups()
    return "\\frac" + (f"{{{above}}}" if above else "") + (f"{{{below}}}" if below else "")


def bare(text: str) -> str:
    """A tidy text without spaces (but between digits) and without text commands, to be compared letter by letter."""
    text = _REMOVABLE_SPACE.sub("", _TEXT.sub(r"\1", text).strip())
    return text if text == "+" else text.removeprefix("+")


def choice(text: str, *, marked: bool = False) -> str | None:
    r"""The letter of a multiple-choice answer, `(C)`, `C.`, `\text{(C)} 12`; `marked`: only what is nothing else."""
    found = _CHOICE_FIRST.match(text)
    if found is None or (marked and not _CHOICE.fullmatch(text)):
        return None
    letter, rest = next(filter(None, found.groups())), text[found.end() :]
    # What follows a marked letter, `(C)`, `C.`, `C:`, is the option's own text, which may have letters but no other
    # marked one, unless it speaks of others, `both (A) and (B)`; what follows a bare letter, or goes on as a sentence,
    # must have no other letter at all. A bare letter in a sum or an equation, `b - 1`, is a variable.
    labelled = text[found.end() - 1] in ".:)]"
    if not labelled and _OPERATOR.match(rest):
        return None
    if labelled and not _PROSE.match(rest):
        hedged = None if _OF_OTHERS.match(rest) else _LABEL.search(rest) or _LABEL_CLOSED.match(rest)
    elif letter.islower():
        hedged = _LETTER_LOWER.search(rest) or _LETTER.search(rest) or (letter == "a" and _RUNNING_TEXT.match(rest))
    else:
        hedged = _LETTER.search(rest)
    return None if hedged else letter.upper()


def _without_leads(gold: str, found: str) -> tuple[str, str]:
    """Both without what stands in front and changes nothing: an option's letter, `The answer is`, the same words."""
    gold, found = (_CJK_LEAD.sub("", _LEADING_OPTION.sub("", t, count=1), count=1) for t in (gold, found))
    leads = _LEADING_TEXT.match(gold), _LEADING_TEXT.match(found)
    same = len({lead[1].casefold().strip() if lead else "" for lead in leads}) == 1
    gold, found = (
        text[lead.end() :] if lead and (same or _HARMLESS.fullmatch(lead[1] + lead[2])) else text
        for lead, text in zip(leads, (gold, found), strict=True)
    )
    return gold, found


def _words(text: str, *, certain: bool) -> str | None:
    """An answer in words, for comparison; `certain`: only what cannot be a product of variables."""
    marked = _TEXT.fullmatch(text)
    content = " ".join((marked[1] if marked else text).split())
    if not _WORDS.fullmatch(content):
        return None
    content = _ARTICLE.sub("", content.casefold())
    content = content.removesuffix("s") if content.startswith("no ") else content  # no solution, no solutions
    words = content.split()
    long = min(map(len, words)) > 1 and len(content) > 3 and FUNCTIONS.isdisjoint(words)
    sure = marked or _THE.match(text) or long or content in _SHORT_WORDS or _CJK.search(content)
    return content if sure or not certain else None


def _parts(text: str) -> Parts:
    """The answer's items, with ± written out."""
    member = _MEMBER.fullmatch(text) is not None
    for pattern in (_MEMBER, _NAMED_WHOLE):
        if inner := pattern.fullmatch(text):
            text = inner[1]
    brackets, items = "", _split(text)
    if len(items) == 1 and (inside := _inside(text)) is not None:
        brackets, inner = inside
        if brackets == "{}" and (condition := _SUCH_THAT.fullmatch(inner)):
            return _parts(condition[1])
        items = _split(inner, thousands=brackets == "{}")
        if brackets == "" or (brackets == "()" and len(items) == 1):
            return _parts(inner)
    if brackets in ("", "{}"):
        items = [version for item in items for version in _both_signs(item)]
    endless = len(items) == 2 and any(map(_INFINITY.search, items))
    interval = brackets not in ("", "{}") and (member or endless or brackets in ("(]", "[)"))
    return Parts(text, brackets, tuple(items), interval)


def _split(text: str, *, thousands: bool = True) -> list[str]:
    """The text at its commas, semicolons, ands and ors that stand in no bracket."""
    text = _AND.sub(lambda joint: joint[1] or ",", text)
    if thousands:
        text = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), text)
    items, start, depth = [], 0, 0
    for mark in _MARK.finditer(text):
        if mark[0] in (",", ";"):
            if depth == 0:
                items.append(text[start : mark.start()])
                start = mark.end()
        else:
            depth += 1 if mark[0] in _OPEN or mark[0].startswith("\\begin") else -1
    return [item.strip() for item in (*items, text[start:]) if item.strip()]


def _inside(text: str) -> tuple[str, str] | None:
    """The brackets that hold the whole text, and what is inside; a pair of plain braces is none ("")."""
    marks = [mark for mark in _MARK.finditer(text) if mark[0] not in (",", ";")]
    if len(marks) < 2 or marks[0].start() > 0 or marks[-1].end() < len(text):
        return None
    if marks[0][0] not in _OPEN or marks[-1][0] not in _CLOSE:
        return None
    depth = 0
    for mark in marks[:-1]:
        depth += 1 if mark[0] in _OPEN or mark[0].startswith("\\begin") else -1
        if depth == 0:
            return None
    first, last = marks[0][0], marks[-1][0]
    inner = text[marks[0].end() : marks[-1].start()].strip()
    return (
        ("", inner) if (first, last) == ("{", "}") else (_BRACKET.get(first, first) + _BRACKET.get(last, last), inner)
    )


def _both_signs(item: str) -> list[str]:
    if "\\pm" not in item and "±" not in item:
        return [item]
    upper = item.replace("\\pm", "+").replace("±", "+").replace("\\mp", "-").replace("∓", "-")
    lower = item.replace("\\pm", "-").replace("±", "-").replace("\\mp", "+").replace("∓", "+")
    return [upper.removeprefix("+").strip(), lower.strip()]


def _same(gold: Parts, found: Parts, decide: Decide) -> bool | None:
    gold, found = _as_tuple(gold, found), _as_tuple(found, gold)
    if len(gold.items) == len(found.items) == 1 and {gold.brackets, found.brackets} <= {"", "{}"}:
        return _same_value(gold.items[0], found.items[0], decide)
    verdict = _same_items(gold, found, decide)
    if verdict is False and any(_RELATION.search(parts.text) for parts in (gold, found)):
        return decide(gold.text, found.text)  # an interval and an inequality, two inequalities and a union
    return verdict


def _as_tuple(parts: Parts, other: Parts) -> Parts:
    """A column vector as the tuple of its rows, where the other side is a tuple."""
    column = _COLUMN.fullmatch(parts.text)
    if column is None or other.brackets != "()" or other.interval:
        return parts
    rows = tuple(row.strip() for row in column[2].split("\\\\") if row.strip())
    return Parts(parts.text, "()", rows, interval=False)


def _same_items(gold: Parts, found: Parts, decide: Decide) -> bool | None:
    in_order = _in_order(gold.brackets, found.brackets, len(gold.items))
    sets = gold.brackets == found.brackets == "{}"  # which have an element once, however often it is written
    if "" in (gold.brackets, found.brackets) and (gold.interval or found.interval):
        return False
    if in_order is None or (len(gold.items) != len(found.items) and not sets):
        return False
    mine, theirs = _without_names(gold.items, found.items)
    if in_order:
        return _all(_same(_parts(a), _parts(b), decide) for a, b in zip(mine, theirs, strict=True))
    matches = [[_same(_parts(a), _parts(b), decide) for b in theirs] for a in mine]
    rows = (*matches, *zip(*matches, strict=True))
    return _all(True in row or (None if None in row else False) for row in rows)


def _in_order(gold: str, found: str, count: int) -> bool | None:
    """Whether the items must be in order; None where no order could make them equal."""
    if gold == found:
        return gold not in ("", "{}")
    if "" in (gold, found):
        return "{}" not in (gold, found)
    return True if count > 2 and {gold, found} == {"()", "[]"} else None


def _without_names(gold: tuple[str, ...], found: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The items of both sides without `x =` in front, where all of one side have it and none of the other."""
    named = [[_NAMED.fullmatch(item) for item in items] for items in (gold, found)]
    if all(named[0]) != all(named[1]) and not (any(named[0]) and any(named[1])):
        return [m[3] if m else i for m, i in zip(named[0], gold, strict=True)], [
            m[3] if m else i for m, i in zip(named[1], found, strict=True)
        ]
    return list(gold), list(found)


def _same_value(gold: str, found: str, decide: Decide) -> bool | None:
    mine, theirs = _NAMED.fullmatch(gold), _NAMED.fullmatch(found)
    same_name = mine and theirs and bare(mine[1] + mine[2]) == bare(theirs[1] + theirs[2])
    if same_name or (mine and "=" not in found) or (theirs and "=" not in gold):
        gold, found = (_LAST_EQUAL.split(t)[-1].strip() for t in (gold, found))
    if bare(gold) == bare(found):
        return bare(gold) != ""
    bases = _in_base(gold), _in_base(found)
    if any(bases):
        return bases[0] == bases[1]
    if (verdict := _same_percent(gold, found)) is not None:
        return verdict
    if any(map(_STERLING.search, (gold, found))):
        gold, found = (_POUNDS.sub("£", text) for text in (gold, found))  # which are a weight otherwise
    (gold, gold_unit), (found, found_unit) = quantity(gold), quantity(found)
    if gold_unit and found_unit and {gold_unit.dimension, found_unit.dimension} == {"angle", "radian"}:
        gold, found = (_in_radians(text, unit) for text, unit in ((gold, gold_unit), (found, found_unit)))
        gold_unit = found_unit
    values = number(bare(gold)), number(bare(found))
    if gold_unit and found_unit and gold_unit != found_unit:
        if gold_unit.dimension != found_unit.dimension or values[0] is None or values[1] is None:
            return False
        return values[0] * gold_unit.factor == values[1] * found_unit.factor
    if values[0] is not None and values[1] is not None:
        return values[0] == values[1]
    if bare(gold) == bare(found):
        return bare(gold) != ""
    letters = [set(_COMMAND.sub("", text)) & _LETTERS for text in (gold, found)]
    if letters[0] != letters[1] and {a.casefold() for a in letters[0]} == {a.casefold() for a in letters[1]}:
        return False  # R and r are two variables
    if not _is_expression(gold) or not _is_expression(found):
        return False
    return decide(gold, found)


def _in_base(text: str) -> tuple[int | str, str] | None:
    """The value of a number in a base and the base; a variable with an index, A_1, as it is written; else None."""
    if (found := _BASE.fullmatch(bare(text))) is None:
        return None
    digits, base = (part.strip("{()}") for part in found.groups())
    base = _BASES.get(base, base)
    if base.isdigit() and 2 <= int(base) <= 36 and digits.isalnum() and not digits.isalpha():
        try:
            return int(digits, int(base)), base
        except ValueError:
            pass
    return None if "(" in found[0] else (found[1], base)


def _in_radians(value: str, unit: Unit) -> str:
    return value if unit.dimension == "radian" else rf"\frac{{\pi}}{{180}}({value})"


def _is_expression(text: str) -> bool:
    """Whether no words are in front, a variable to a parser, and brackets match, so that none is sent into the deep."""
    if _LEADING_TEXT.match(text):
        return False
    depth = 0
    for mark in _MARK.finditer(text):
        if mark[0] not in (",", ";"):
            depth += 1 if mark[0] in _OPEN or mark[0].startswith("\\begin") else -1
        if not 0 <= depth <= DEEPEST:
            return False
    return depth == 0


_LETTERS = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def _same_percent(gold: str, found: str) -> bool | None:
    """50 % is 1/2; and it is 50 where the other side leaves the sign out, unless the number is below 1."""
    marks = _PERCENT.fullmatch(gold), _PERCENT.fullmatch(found)
    values = [number(bare(mark[1] if mark else text)) for mark, text in zip(marks, (gold, found), strict=True)]
    if not any(marks) or values[0] is None or values[1] is None:
        return None
    if all(marks):
        return values[0] == values[1]
    share, plain = values if marks[0] else values[::-1]
    assert share is not None
    return share == plain * 100 or (share == plain and abs(share) >= 1)  # pyright: ignore[reportOptionalOperand]


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    known = list(verdicts)
    return False if False in known else None if None in known else True
