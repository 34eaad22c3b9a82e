r"""What only changes how an answer looks, and the brackets in it.

tidy(r"\dfrac12 \text{ cm}")         r"\frac{1}{2} \text{ cm}"
bare(r"x = \text{5}")                "x=5", for comparison letter by letter
split("1, (2, 3) and 4")             ["1", "(2, 3)", "4"]
inside("(1, 2]")                     ("(]", "1, 2")
"""

import re
from collections.abc import Iterator

from opasd.grading.layout import SAYS, in_one_line, upright

# Characters that have a LaTeX form. Not μ and Ω, which may be units.
_GREEK = """
alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma sigma tau upsilon phi chi
psi omega
"""
_CAPITALS = "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi"
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]{2,}|[⁰¹⁴⁵⁶⁷⁸⁹ⁿ]")
_LOWERED = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_TO_LINE = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ₀₁₂₃₄₅₆₇₈₉", "0123456789+-n0123456789")
_CHARACTERS = str.maketrans(
    {chr(wide): chr(wide - 0xFEE0) for wide in range(0xFF01, 0xFF5F)}  # full-width ASCII
    | {"｛": "\\{", "｝": "\\}", "＄": "\\$", "￥": "¥", "￡": "£"}
    | dict(zip("【】−–。、　", "[]--.,\u0020", strict=True))
    | {"²": "^2", "³": "^3", "½": "\\frac12 ", "⅓": "\\frac13 ", "⅔": "\\frac23 ", "¼": "\\frac14 ", "¾": "\\frac34 "}
    | {"π": "\\pi ", "∞": "\\infty ", "×": "\\times ", "·": "\\cdot ", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne "}
    | {"⩽": "\\le ", "⩾": "\\ge ", "⁄": "/", "′": "'", "∣": "\\mid ", "∖": "\\setminus ", "“": "", "”": ""}
    | {"⟨": "\\langle ", "⟩": "\\rangle "}
    | {"∩": "\\cap ", "∠": "\\angle ", "△": "\\triangle ", "⌊": "\\lfloor ", "⌋": "\\rfloor ", "⌈": "\\lceil "}
    | {"⌉": "\\rceil ", "∛": "\\sqrt[3]", "⅛": "\\frac18 ", "⅜": "\\frac38 ", "⅝": "\\frac58 ", "⅞": "\\frac78 "}
    | {sign: f"\\mathbb{{{letter}}}" for sign, letter in zip("ℝℤℕℚℂ", "RZNQC", strict=True)}
    | {chr(0x3B1 + place): f"\\{name} " for place, name in enumerate(_GREEK.split()) if name not in ("mu", "omicron")}
    | {sign: f"\\{name} " for sign, name in zip("ΓΔΘΛΞΠΣΦΨ", _CAPITALS.split(), strict=True)}
    | {"∨": "\\lor ", "∧": "\\land "}
    | {"≈": "\\approx ", "∪": "\\cup ", "∈": "\\in ", "∅": "\\emptyset ", "±": "\\pm ", "∓": "\\mp "}
)
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|(\d+|\w))")
# Notations that have a usual form.
_EMPTY_SET = re.compile(r"\\varnothing(?![a-zA-Z])|\\\{\s*\\\}")
_CHOOSE = re.compile(r"(?<!\\)\{([^{}\\]*)\\choose(?![a-zA-Z])([^{}\\]*)\}|^\s*(\w+)\s*\\choose\s+(\w+)\s*$")
_ROW_GAP = re.compile(r"\\\\\[\s*-?[\d.]+\s*(?:pt|em|ex|mm|cm)\s*\]")
_TOKEN = (
    r"([\da-zA-Z]|\\(?:alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|pi|rho|sigma|tau"
    r"|phi|varphi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Pi|Sigma|Phi|Psi|Omega)(?![a-zA-Z]))"
)
_FRACTION = re.compile(rf"\\(?:[dtc]?(frac)|[dt]?(binom))(?![a-zA-Z])\s*(?:{_TOKEN}\s*(?:{_TOKEN}|(?=\{{))|(?=\{{))")
_TWO_LEVELS = r"(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*"
_ROOT_OVER_TOKEN = re.compile(r"(\\sqrt\s*\[[^\[\]]*\])\s*([\da-zA-Z])")
_FRACTION_OVER_TOKEN = re.compile(rf"(\\(?:frac|binom)\s*\{{{_TWO_LEVELS}\}})\s*{_TOKEN}")
# Code: np.arcsin(1/2), 2**10, 1./3.
_LIBRARY = re.compile(r"(?<![\w\\])(?:np|numpy|math|sympy|sp)\.([a-z]+\d*)(?![a-zA-Z])")
_LIBRARY_NAMES = {"log": "\\ln", "log10": "\\log_{10}", "log2": "\\log_{2}", "e": "e", "inf": "\\infty"} | {
    f"a{name}": f"\\arc{name}" for name in ("sin", "cos", "tan")
}
# \mathbb N, \max\{a, b\}, \text{\$}5, \ast, \lVert.
_MATHBB = re.compile(r"\\mathbb\s+([A-Z])(?![a-zA-Z])")
_GREATEST = re.compile(r"(\\(?:max|min|gcd|lcm))\s*(?:\\left\s*)?\\\{([^{}]*?)(?:\\right\s*)?\\\}")
_PLAIN_SIGN = re.compile(r"\\text\s*\{\s*(\\\$)\s*\}|\\(ast|[lr]Vert)(?![a-zA-Z])|^\s*\\sim(?=\s*[\d\\])")
_PLAIN_SIGNS = {"ast": "*", "lVert": "\\|", "rVert": "\\|"}
# Words for signs: sin(x), pi/4, 2 x 10^5, +/- 3.
_FUNCTION = r"(?:arc)?(?:sin|cos|tan)|(?:sin|cos|tan)h|cot|sec|csc|ln|log"
_FUNCTION_WORD = re.compile(rf"(?<![a-zA-Z\\])({_FUNCTION})(?=\s*[(\\\d^_]|\s+[a-z](?![a-zA-Z]))")
# Not \text{ sec} at the end, a unit.
_FUNCTION_NAME = re.compile(
    rf"\\(?:operatorname|text|mathrm)\s*\{{\s*({_FUNCTION})\s*\}}(?=\s*(?:\^\s*\{{?-?\d\}}?\s*)?(?:[\w({{_]|\\(?!text|\\|cdot|times)))"
)
_PI = re.compile(r"(?<![a-zA-Z\\])pi(?![a-zA-Z_])")
_TIMES_TEN = re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", re.ASCII)
_STARS = re.compile(r"(?<=[\w)\]}])\s*\*\*\s*(-?\d+(?:\.\d+)?|-?[a-zA-Z](?!\w)|\([^()]*\))", re.ASCII)
_ROOT_OF = re.compile(r"\\?(?<![a-zA-Z])sqrt\s*\(([^()]*)\)")
_EXP = re.compile(r"(?<![a-zA-Z\\])exp(?=\s*\()")
_POINT = re.compile(r"(?<=\d)\.(?=\s*[/*+)-])")
# Words that are signs, or that say nothing.
_ORDINAL = re.compile(
    r"(?<=\d)(?:\s*\^\s*(?:\{\s*(?:\\text\s*\{\s*(?:st|nd|rd|th)\s*\}|st|nd|rd|th)\s*\}|\\text\s*\{\s*(?:st|nd|rd|th)\s*\})"
    r"|\s*\\text\s*\{\s*(?:st|nd|rd|th)\s*\}|(?:st|nd|rd|th)(?![a-zA-Z]))"
)
_TIMES = re.compile(r"(?<=[\d)}])\s*(?:\\text\s*\{\s*(?:times|multiplied by)\s*\}|times(?![a-zA-Z]))\s*(?=[\d(\\])")
_OUT_OF = re.compile(r"^(\d+)\s*(?:\\text\s*\{\s*out of\s*\}|out of)\s*(\d+)$", re.ASCII)
_RATIO = re.compile(r"^(\d+)\s*(?:\\text\s*\{\s*to\s*\}|to(?![a-zA-Z]))\s*(\d+)$", re.ASCII)
_BASE = re.compile(
    r"^\(?(?=\w*\d)([^\W_]+)\)?\s*(?:_\s*\{\s*)?\(?"
    r"(?:\\text\s*\{\s*)?\(?\s*(?:in )?base[\s-]*\}?\s*(\d+|[a-z]+)[\s)}]*$",
    re.ASCII,
)
_ALL_REALS = re.compile(r"^(?:\\text\s*\{\s*)?(?:the set of )?all (?:reals|real numbers)\.?\s*\}?$", re.IGNORECASE)
# What a function is defined for is given with the problem: f(x) = x for all positive integers x.
_FOR_ALL = re.compile(
    r"^([a-zA-Z]\s*\(\s*([a-z])\s*\)\s*=.*?\S)\s*,?"
    r"\s*(?:\\forall(?![a-zA-Z])|\\text\s*\{\s*,?\s*for (?:all|every|any|each)"
    r"(?: (?:real|rational|complex|positive|natural|non-?negative|integer|number)s?)*\s*\})"
    r"\s*\2\s*(?:\\in\s*\\mathbb\s*\{?\s*[NZQRC]\s*\}?(?:\s*[\^_]\s*(?:\{[^{}]*\}|[+*\d]))*)?$",
    re.DOTALL,
)
_MAPS = re.compile(r"^(?:([a-zA-Z])\s*:\s*)?([a-zA-Z])\s*\\mapsto(?![a-zA-Z])")
_SO = re.compile(r"^(?:\\(?:therefore|implies|(?:Long)?[rR]ightarrow)(?![a-zA-Z])\s*)+")
# Signs for words: or, and; c(cos x + i sin x).
_OR_AND = re.compile(r"\\(?:(lor|vee)|land|wedge)(?![a-zA-Z])")
_CIS = re.compile(
    r"(?:\\(?:text|operatorname)\s*\{\s*cis\s*\}|\\?(?<![a-zA-Z])cis(?![a-zA-Z]))\s*(\([^()]*\)|[\w\s^.{}/\\]+)"
)
# ]1, 2[, an open interval; whole pairs first.
_OUTWARD = re.compile(r"([\[\](])(\s*[^\[\](),;\s][^\[\]()]*[,;][^\[\]()]+)([\[\])])")
# Of what family: k\pi (k\in\mathbb{Z}), k\pi \text{ where } k \text{ is an integer}.
_WHERE = r"(?:,|;)?\s*(?:\\text\s*\{\s*,?\s*(?:for|where|with)(?: (?:all|any|every|each|some))?\s*\}|[,;(])"
_FAMILY = re.compile(
    rf"^(.*\S)\s*{_WHERE}\s*([a-z])\s*\\in\s*(?:\\(?:mathbb|text)\s*\{{\s*([ZNQR])\s*\}}|([ZNQR]))(?:\s*\))?$",
    re.DOTALL,
)
_INTEGERS = re.compile(
    rf"^(.*\S)\s*(?:{_WHERE}\s*([a-z])\s*\\text\s*\{{\s*is an(?:y)?(?: arbitrary)? integer\s*\}}"
    r"|,?\s*\\text\s*\{\s*,?\s*(?:for|where|with) (?:all |any |every |each |some )?integers?\s*\}\s*([a-z]))$",
    re.DOTALL,
)
_ROUGHLY = re.compile(
    r"^\\text\s*\{\s*\(\s*(?:about|approximately|approx\.?|roughly|around)\s*\}(.*)\\text\s*\{\s*\)\s*\}$"
    r"|^(.*\S)\s*(?:\\text\s*\{\s*\(?(?:approximately|approx\.?|roughly)\)?\s*\}|\((?:approximately|approx\.?|roughly)\))$",
    re.DOTALL,
)
_ABOUT = re.compile(r"^\s*([a-zA-Z]?)\s*\\approx(?![a-zA-Z])")
_DOTS = re.compile(r"\\[lc]?dots[bcimo]?(?![a-zA-Z])|\.\.\.|…")
_FACTORIAL_IS = re.compile(r"(?<=[\d)])!=(?!=)", re.ASCII)
_NEGATIVE_POWER = re.compile(r"\^\s*(-(?:\d+|[a-zA-Z](?![a-zA-Z])))", re.ASCII)
_TWO_FORMULAS = re.compile(r"(?<!\\)\$(?:\s*\n\s*|\s+)\$(?!\$)")
# Spaces, fonts and sizes.
_DIGIT_GAP = re.compile(r"(?<=\d),\\!\s*(?=\d{3})|(?<=\d)\{,\}(?=\d{3})|(?<=\d)\\[,;:!](?=\d{3}(?!\d))")
_SPACED_NUMBER = re.compile(r"[-+]?\d{1,3}(?: \d{3})+", re.ASCII)
_LOOKS = re.compile(
    r"(?<!\\)\$|(?<!\\)\\[()\[\]]|\\(?:left|right|middle|displaystyle|limits|bf|[lL]arge|[hH]uge|LARGE|checkmark|[bB]igg?[lr]?)(?![a-zA-Z])\.?|\*\*"
    r"|\\(?:text)?color\s*\{[^{}]*\}"
)
_SPACE = re.compile(r"(?<!\\)\\[,;:! ]|\\(?:quad|qquad|,)(?![a-zA-Z])|~|\s+")
_REMOVABLE_SPACE = re.compile(r"(?<!\d) | (?!\d)")
_FONT = re.compile(
    r"\\(?:textbf|textsf|texttt|mathtt|textit|textnormal|textrm|mathbf|mathit|mathsf|boldsymbol|bm|emph|mbox|mathrm|(?<!\^\{\\)underline)\s*\{"
)
_TEXT_COMMAND = re.compile(r"\\text\s*\{")
_TWO_TEXTS = re.compile(r"(\\text\s*\{[^{}]*?)\s*\}\s*\\text\s*\{")
_FONT_OF_EXPRESSION = re.compile(r"\\text\s*\{(?=[\s\d+-]*\\(?:[dtc]?frac|sqrt|pi|[dt]?binom)(?![a-zA-Z]))")
TEXT = re.compile(r"\\(?:text|operatorname)\s*\{([^{}]*)\}")
# Brackets and what separates items.
_MARK = re.compile(r"\\[{}]|\\[lr]brace(?![a-zA-Z])|\\(?:begin|end)\s*\{\w+\*?\}|\\[lr]angle(?![a-zA-Z])|[()\[\]{},;]")
_OPEN, _CLOSE = ("(", "[", "{", "\\{", "\\lbrace", "\\langle"), (")", "]", "}", "\\}", "\\rbrace", "\\rangle")
_SEPARATORS = (",", ";")
_PLAIN_BRACKET = {"\\{": "{", "\\lbrace": "{", "\\langle": "(", "\\}": "}", "\\rbrace": "}", "\\rangle": ")"}
_AND = re.compile(
    r"\\text\s*\{\s*,?\s*(?:and|or)\s*\}|(\\text\s*\{[^{}]*\})|(?<![a-zA-Z\\{])(?:and|or)(?![a-zA-Z}])|[或和]", re.ASCII
)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])|(?<![\d.,(\[])\d{1,3}(?:,\d{3})+(?=, )", re.ASCII)
MOST_FONTS = 10
"""Fonts that are taken off one answer."""
DEEPEST = 50
"""Brackets within brackets that an expression may have."""


def tidy(text: str) -> str:
    """Return the answer without what only changes how it looks, and with one space where there was any."""
    text = _DOTS.sub(r"\\ldots ", _TWO_FORMULAS.sub("$, $", in_one_line(text)))
    if not text.isascii():
        text = _RAISED.sub(lambda digits: f"^{{{digits[0].translate(_TO_LINE)}}}", text)
        text = _LOWERED.sub(lambda digits: f"_{{{digits[0].translate(_TO_LINE)}}}", text)
    text = _as_latex(_EMPTY_SET.sub(r"\\emptyset", text.translate(_CHARACTERS)))
    text = _GREATEST.sub(r"\1(\2)", _MATHBB.sub(r"\\mathbb{\1}", text))
    text = _PLAIN_SIGN.sub(lambda sign: sign[1] or _PLAIN_SIGNS.get(sign[2], "\\approx "), text)
    text = _ROW_GAP.sub(r"\\\\", _ROOT.sub(lambda root: rf"\sqrt{{{root[1] or root[2]}}}", text))
    text = _CHOOSE.sub(lambda pair: rf"{{\binom{{{pair[1] or pair[3]}}}{{{pair[2] or pair[4]}}}}}", text)
    text = _DIGIT_GAP.sub(lambda gap: "" if gap[0].startswith("\\") else ",", text)
    text = _FONT.sub(r"\\text{", _SPACE.sub(" ", _LOOKS.sub("", text)))
    text = _OUTWARD.sub(_inward, upright(_SO.sub("", text.strip()).replace(":=", "=")))
    text = _CIS.sub(r"(\\cos{\1}+i\\sin{\1})", _MAPS.sub(lambda name: f"{name[1] or 'f'}({name[2]})=", text))
    text = _without_words(_TWO_TEXTS.sub(r"\1 ", _without_fonts(text.strip())))
    text = _ROOT_OVER_TOKEN.sub(r"\1{\2}", _FRACTION.sub(_braced_fraction, text))
    text = _FACTORIAL_IS.sub("! =", text)
    text = _NEGATIVE_POWER.sub(r"^{\1}", text)
    text = _ABOUT.sub(r"\1=", _FRACTION_OVER_TOKEN.sub(r"\1{\2}", text), count=1)
    text = text.strip()
    text = text if text == "=" else text.removeprefix("=").rstrip(".").strip()
    if text.startswith("{") and (enclosed := inside(text)) and enclosed[0] == "":
        text = enclosed[1]
    if (marked := TEXT.fullmatch(text)) and any(character.isdigit() for character in marked[1]):
        text = marked[1].strip()
    return text.replace(" ", "") if _SPACED_NUMBER.fullmatch(text) else text


def _as_latex(text: str) -> str:
    """Return an answer in the words of a programming language, np.arcsin(1/2) or 2**10, as LaTeX."""
    if "." in text:
        text = _LIBRARY.sub(lambda call: _LIBRARY_NAMES.get(call[1], f"\\{call[1]}") + " ", text)
        text = _POINT.sub("", text)
    if "**" in text:
        text = _STARS.sub(lambda power: f"^{{{power[1].removeprefix('(').removesuffix(')')}}}", text)
    if "exp" in text:
        text = _EXP.sub(r"\\exp", text)
    text = _FUNCTION_WORD.sub(r"\\\1", _FUNCTION_NAME.sub(r"\\\1 ", text))
    text = _TIMES_TEN.sub(r"\\times ", _PI.sub(r"\\pi ", text)).replace("+/-", "\\pm ")
    return _ROOT_OF.sub(r"\\sqrt{\1}", text) if "sqrt" in text else text


def _closing_brace(text: str, start: int) -> int:
    """Return where the brace closes that was opened before the start, or the end of the text."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return len(text)


def _without_fonts(text: str) -> str:
    """Return an expression without the font around it, which `tidy` has made a text command; words keep theirs."""
    for _ in range(MOST_FONTS):
        font = _FONT_OF_EXPRESSION.search(text)
        if font is None and (whole := _TEXT_COMMAND.match(text)) and not {"\\", "{"}.isdisjoint(text[whole.end() :]):
            font = whole if _closing_brace(text, whole.end()) == len(text) - 1 else None
        if font is None:
            break
        end = _closing_brace(text, font.end())
        text = text[: font.start()] + text[font.end() : end] + text[end + 1 :]
    return text


def _without_words(text: str) -> str:
    """Return the text with words that are signs as signs, and without those that say nothing."""
    if _OR_AND.search(text) and all(re.search(SAYS, part) for part in _OR_AND.split(text)[::2]):
        text = _OR_AND.sub(lambda sign: "\\text{ or }" if sign[1] else "\\text{ and }", text)
    text = _TIMES.sub(r" \\times ", _ORDINAL.sub("", text))
    text = _RATIO.sub(r"\1:\2", _OUT_OF.sub(r"\\frac{\1}{\2}", text.strip()))
    text = _FOR_ALL.sub(r"\1", _ALL_REALS.sub(r"\\mathbb{R}", _BASE.sub(r"\1_{\2}", text)))
    text = _FAMILY.sub(r"\1, \2\\in\\mathbb{\3\4}", _INTEGERS.sub(r"\1, \2\3\\in\\mathbb{Z}", text))
    return (roughly[1] or roughly[2]).strip() if (roughly := _ROUGHLY.match(text)) else text


def _inward(pair: re.Match[str]) -> str:
    """Return the interval ]1, 2[ as (1, 2)."""
    return f"{'(' if pair[1] == ']' else pair[1]}{pair[2]}{')' if pair[3] == '[' else pair[3]}"


def _braced_fraction(fraction: re.Match[str]) -> str:
    kind, *parts = filter(None, fraction.groups())
    return f"\\{kind}" + "".join(f"{{{part}}}" for part in parts)


def bare(text: str) -> str:
    """Return a tidy text without text commands and without spaces, except between digits."""
    text = _REMOVABLE_SPACE.sub("", TEXT.sub(r"\1", text).strip())
    return text if text == "+" else text.removeprefix("+")


def split(text: str, *, thousands: bool = True) -> list[str]:
    """Split the text at commas, semicolons, ands and ors outside brackets; `thousands`: 1,000 is one number."""
    text = _AND.sub(lambda joint: joint[1] or ",", text)
    if thousands:
        text = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), text)
    items, start = [], 0
    for mark, depth in _marks(text):
        if depth == 0 and mark[0] in _SEPARATORS:
            items.append(text[start : mark.start()])
            start = mark.end()
    return [item.strip() for item in (*items, text[start:]) if item.strip()]


def inside(text: str) -> tuple[str, str] | None:
    """Return the pair of brackets around the whole text, "" for plain braces, and what it holds; None without one."""
    marks = [(mark, depth) for mark, depth in _marks(text) if mark[0] not in _SEPARATORS]
    if len(marks) < 2 or any(depth == 0 for _, depth in marks[:-1]):
        return None
    first, last = marks[0][0], marks[-1][0]
    if first.start() > 0 or last.end() < len(text) or first[0] not in _OPEN or last[0] not in _CLOSE:
        return None
    pair = "".join(_PLAIN_BRACKET.get(mark[0], mark[0]) for mark in (first, last))
    return "" if (first[0], last[0]) == ("{", "}") else pair, text[first.end() : last.start()].strip()


def marks_at_top(text: str, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern that are outside all brackets."""
    ends = [(mark.end(), depth) for mark, depth in _marks(text)]
    depth, place = 0, 0
    for match in pattern.finditer(text):
        while place < len(ends) and ends[place][0] <= match.start():
            depth, place = ends[place][1], place + 1
        if depth == 0:
            yield match


def is_balanced(text: str) -> bool:
    """Return whether the brackets match and are not too deep for a parser."""
    depths = [depth for _, depth in _marks(text)]
    return all(0 <= depth <= DEEPEST for depth in depths) and (not depths or depths[-1] == 0)


def _marks(text: str) -> Iterator[tuple[re.Match[str], int]]:
    """Yield every bracket and separator with the depth after it."""
    depth = 0
    for mark in _MARK.finditer(text):
        if mark[0] not in _SEPARATORS:
            depth += 1 if mark[0] in _OPEN or mark[0].startswith("\\begin") else -1
        yield mark, depth
