r"""Names in front of values, and variables that only a name binds.

without_shared_name("x = 2 + 3 = 5", "5")     ("5", "5"); the same or a missing name does not matter
same_variables("f(x) = x^2", "f(t) = t^2")    the answer with the known answer's variables
"""

import re
from string import ascii_letters

from opasd.grading.tidying import TEXT, bare, marks_at_top
from opasd.grading.words import has_words

_INDEX = r"_(?:\w|\\[a-zA-Z]+|\\?(?:text)?\s*\{(?:[^{}]|\\text\s*\{[^{}]*\})*\})"
_COMMAND = r"\\(?!frac|sqrt|text|sum|prod|int|log|ln|sin|cos|tan)[a-zA-Z]+(?:\s*\{[a-zA-Z]\})?"
_LETTERS = rf"(?:[a-zA-Z]\w?|{_COMMAND}|[A-Z]{{2,5}}|\\angle\s*[A-Z]{{1,3}})"
_SYMBOL = rf"{_LETTERS}\s*'*(?:{_INDEX})?'*"
_NAME = re.compile(
    rf"{_SYMBOL}(?:\s*\(\s*(?:[a-zA-Z](?:_\w)?|-?\d+)(?:\s*,\s*(?:[a-zA-Z]|-?\d+))*\s*\))?"
    rf"|\\frac\s*\{{\s*d\s*{_SYMBOL}\s*\}}\s*\{{\s*d\s*{_SYMBOL}\s*\}}"
    rf"|{_SYMBOL}\s*\^\s*\{{?\s*\*\s*\}}?|{_SYMBOL}(?:\s*:\s*{_SYMBOL})+|\(\s*[a-z]\s*\\circ\s*[a-z]\s*\)\s*\(\s*[a-z\d]+\s*\)"
    r"|\\?(?:deg|Re|Im)\s*(?:\(\s*[a-zA-Z]\s*\)|\s[a-zA-Z])|\\(?:text|operatorname)\s*\{\s*[A-Z][a-z]+\s*\}\s*\(\s*[a-zA-Z]\s*\)"
    r"|[PE]\s*[(\[][A-Z](?:\s*\|\s*[A-Z])?[)\]]|\|\s*[A-Z]{1,3}\s*\|"
)
_ARGUMENT = r"(?:[a-zA-Z]|\\(?:alpha|beta|gamma|theta|lambda|mu|phi|omega)(?![a-zA-Z]))"
_FUNCTION = re.compile(
    rf"({_SYMBOL}(?:\s*\^\s*\{{\s*-\s*1\s*\}})?)\s*\(\s*({_ARGUMENT}(?:\s*,\s*{_ARGUMENT})*)\s*\)\s*=(?!=)(.+)",
    re.DOTALL,
)
_SEQUENCE = re.compile(r"([a-zA-Z])_\s*\{?\s*([i-n])\s*\}?\s*=(?!=)(.+)", re.DOTALL)
_VARIABLE = re.compile(_SYMBOL)
_VECTOR = re.compile(r"\\(?:vec|overrightarrow|mathbf)(?![a-zA-Z])")
_ABOUT = re.compile(r"\\approx(?![a-zA-Z])")
_EQUAL_SIGN = re.compile(r"(?<![<>!\\:=])=(?!=)")
_BINDERS = (
    re.compile(r"(?:[,;(}:|]|\\mid)\s*([a-zA-Z])\s*(?:\\in(?![a-zA-Z])|∈)\s*\\mathbb"),
    re.compile(r"\\\{\s*([a-zA-Z])\s*(?:\||:|\\mid(?![a-zA-Z]))"),
    re.compile(r"\\(?:sum|prod)\s*_\s*\{\s*([a-zA-Z])\s*="),
)
_TOKEN = re.compile(r"\\text\s*\{[^{}]*\}|\\[a-zA-Z]+|[a-zA-Z]")
_ANY_COMMAND = re.compile(r"\\[a-zA-Z]+")
_LETTER_FORM = re.compile(r"\\var(epsilon|theta|phi|rho|sigma)(?![a-zA-Z])")
_OTHER_RELATION = re.compile(r"[<>≤≥]|\\(?:leq?|geq?|lt|gt|neq?|approx|equiv|in)(?![a-zA-Z])")


def about_parts(text: str) -> list[str]:
    """Return an answer without its approximation, and that: 2\\sqrt{3} \\approx 3.46."""
    sign = next(marks_at_top(text, _ABOUT), None)
    parts = [text] if sign is None else [text[: sign.start()].strip(), text[sign.end() :].strip()]
    return parts if all(parts) else [text]


def chain(text: str) -> list[str]:
    """Return the links of `a = b = c`; the text alone if it is no such chain."""
    links, start = [], 0
    for sign in marks_at_top(text, _EQUAL_SIGN):
        links.append(text[start : sign.start()].strip())
        start = sign.end()
    links.append(text[start:].strip())
    # Words, commas or other relations between the signs: it says more than one thing.
    broken = any(TEXT.search(link) or "," in link or ";" in link or has_words(link) for link in links[1:-1])
    return links if all(links) and not broken and not _OTHER_RELATION.search(text) else [text]


def name_first(text: str) -> str:
    """Return 7 = x as x = 7."""
    links = chain(text)
    turned = len(links) == 2 and _VARIABLE.fullmatch(links[1]) and not any(map(str.isalpha, links[0]))
    return f"{links[1]}={links[0]}" if turned else text


def name_of(text: str) -> str | None:
    """Return the name in front of `name = value`, in a form for comparison; None without one."""
    names = names_of(text)
    return names[0] if names else None


def names_of(text: str) -> list[str]:
    """Return the name in front, and all variables in a chain such as a = b = 1."""
    links = chain(text)
    if len(links) < 2 or not _NAME.fullmatch(links[0]):
        return []
    return [plain_name(link) for link in (links[0], *filter(_VARIABLE.fullmatch, links[1:-1]))]


def plain_name(text: str) -> str:
    """Return a name in a form for comparison."""
    return re.sub(r"[{}\\\s]", "", bare(_VECTOR.sub("", text)))


def name_other_angles(gold: str, answer: str) -> bool:
    """Return whether both sides name an angle, and not the same one: ∠ABC is ∠CBA but not ∠ACB."""
    corners = [name.removeprefix("angle") for name in map(name_of, (gold, answer)) if name and name.startswith("angle")]
    return len(corners) == 2 and corners[0] not in (corners[1], corners[1][::-1])


def without_shared_name(gold: str, answer: str) -> tuple[str, str]:
    """Keep what is after the last `=`, if both sides have the same name in front or one side has no `=`."""
    names = names_of(gold), names_of(answer)
    plain = [not _EQUAL_SIGN.search(text) for text in (gold, answer)]
    if (names[0] and sorted(names[0]) == sorted(names[1])) or (names[0] and plain[1]) or (names[1] and plain[0]):
        return chain(gold)[-1], chain(answer)[-1]
    return gold, answer


def same_letter_forms(gold: str, answer: str) -> list[str]:
    r"""Return both with \epsilon for \varepsilon, and so on, unless one side uses the two forms as two letters."""
    two = {
        letter
        for text in (gold, answer)
        for letter in _LETTER_FORM.findall(text)
        if re.search(rf"\\{letter}(?![a-zA-Z])", text)
    }
    return [
        _LETTER_FORM.sub(lambda form: form[0] if form[1] in two else f"\\{form[1]}", text) for text in (gold, answer)
    ]


def same_variables(gold: str, answer: str) -> str:
    """Return the answer `f(t) = …` in the variables of the known answer `f(x) = …`, if no other letter is taken."""
    first, second = (_FUNCTION.fullmatch(text) or _SEQUENCE.fullmatch(text) for text in (gold, answer))
    if not first or not second or bare(first[1]) != bare(second[1]):
        return _same_bound(gold, answer)
    new, old = (re.split(r"\s*,\s*", match[2]) for match in (first, second))
    letters = {token for token in _TOKEN.findall(second[3]) if re.fullmatch(_ARGUMENT, token)}
    if new == old:
        return _same_bound(gold, answer)
    if len(new) != len(old) or len({*new}) < len(new) or letters & ({*new} - {*old}):
        return answer
    calls_itself = re.search(rf"(?<![a-zA-Z]){re.escape(second[1].strip())}\s*[(_]", second[3])
    defines = letters & {*old} or not (calls_itself or _SEQUENCE.fullmatch(answer))
    if not all(map(str.islower, old)) or not defines:
        return answer  # P(A) is no function of A, and f(a) = f(b) defines nothing
    renamed = dict(zip(old, (f" {letter} " for letter in new), strict=True))
    body = _TOKEN.sub(lambda token: renamed.get(token[0], token[0]), second[3])
    head = f"{second[1]}({','.join(new)})" if _FUNCTION.fullmatch(answer) else f"{second[1]}_{new[0]}"
    return f"{head}={body}"


def _same_bound(gold: str, answer: str) -> str:
    """Return the answer with the known answer's letter for what it binds: k in kπ, k ∈ ℤ, and x in {x | x > 2}."""
    for pattern in _BINDERS:
        old, new = ({*pattern.findall(text)} for text in (answer, gold))
        if len(old) == len(new) == 1 and new.isdisjoint(token for token in _TOKEN.findall(answer) if token not in old):
            (old_letter,), (new_letter,) = old, new
            answer = _TOKEN.sub(lambda token, a=old_letter, b=new_letter: b if token[0] == a else token[0], answer)
    return answer


def differ_in_case(gold: str, answer: str) -> bool:
    """Return whether only the case of letters differs: R and r are two variables."""
    first, second = (set(_ANY_COMMAND.sub("", text)) & {*ascii_letters} for text in (gold, answer))
    return first != second and {a.casefold() for a in first} == {a.casefold() for a in second}
