r"""Variables that the parser does not know, in a form that it does.

plain_symbols([r"\lambda_{\text{red}}/E_1", …])   [r"z_{900}/z_{901}", …]; the same symbol is the same in all texts

These are letters with an index, an accent or a prime, derivatives, ħ and γ. The parser also takes M for m, so that
capitals of letters that occur in both sizes become such symbols too.
"""

import re
from collections.abc import Callable, Sequence

from opasd.grading.tidying import TEXT

_GREEK = (
    r"\\(?:alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|vartheta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau"
    r"|phi|varphi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Sigma|Phi|Psi|Omega|hbar|ell)(?![a-zA-Z])"
)
_LETTER = rf"(?:{_GREEK}|[a-zA-Z])"
_ACCENTED = rf"\\(?:d?dot|bar|hat|tilde|vec)\s*(?:\{{\s*{_LETTER}\s*\}}|{_LETTER})"
_INDEX = r"_\s*(?:\{(?:[^{}]|\\text\s*\{[^{}]*\})*\}|\\text\s*\{[^{}]*\}|\\[a-zA-Z]+|\w)"
_PRIME = r"(?:'+|\^\s*(?:\{\s*(?:\\prime\s*)+\}|\\prime(?![a-zA-Z])))"
_INDEXED = rf"(?:{_ACCENTED}\s*(?:{_INDEX})?{_PRIME}?|{_LETTER}\s*(?:{_INDEX}\s*{_PRIME}?|{_PRIME}))"
_ANY = rf"(?:{_INDEXED}|{_LETTER})"
_ORDER = r"(?:\^\s*(?:\{\s*\d\s*\}|\d))?"
_D = r"(?:d|\\partial(?![a-zA-Z]))"
_DERIVATIVE = rf"\\frac\s*\{{\s*{_D}\s*{_ORDER}\s*{_ANY}\s*\}}\s*\{{(?:\s*{_D}\s*{_ANY}\s*{_ORDER})+\s*\}}"
# The parser takes these for functions.
_CONSTANT = r"\\(?:hbar|gamma|beta|eta)(?![a-zA-Z])|\\(?:zeta|Gamma)(?![a-zA-Z])(?!\s*(?:\\left\s*)?\()"
# It takes a capital Greek letter for the small one, and an inverse function for one divided by the function.
_CAPITAL_GREEK = r"\\(?:Delta|Theta|Lambda|Xi|Pi|Sigma|Phi|Psi|Omega)(?![a-zA-Z])"
_INVERSE = r"[fghFGH]\s*\^\s*\{\s*-\s*1\s*\}(?=\s*(?:\\left\s*)?\()"
# The second part keeps a command with its own index, \sum_{k=1} or \log_2, and words as they are.
_SYMBOL = re.compile(
    rf"({_DERIVATIVE}|{_INVERSE}|(?<!\\){_INDEXED}|{_CONSTANT}|{_CAPITAL_GREEK})|\\text\s*\{{[^{{}}]*\}}|\\[a-zA-Z]+(?:\s*{_INDEX})?"
)
_CAPITAL = re.compile(r"\\text\s*\{[^{}]*\}|\\[a-zA-Z]+|([A-Z])")
_NO_LETTER = re.compile(r"\\text\s*\{[^{}]*\}|\\[a-zA-Z]+|z_\{\d+\}")
_POWER = re.compile(r"\^\s*(z_\{\d+\}(?:\([a-zA-Z,]*\))?)")
_TRANSPOSED = re.compile(r"\^\s*\{?\s*T")  # the parser leaves this power out
_BOUND = re.compile(r"\\(?:sum|prod)\s*_\s*\{\s*([a-zA-Z])\s*=")
_FIRST = 900


def _with_symbols(text: str, symbol: Callable[[str, frozenset[str]], str]) -> str:
    bound = frozenset(_BOUND.findall(text))
    return _SYMBOL.sub(lambda match: symbol(match[0], bound) if match[1] else match[0], text)


def plain_symbols(texts: Sequence[str]) -> list[str]:
    """Return the texts with every such symbol as an indexed z; the same symbol has the same index."""
    numbers: dict[str, int] = {}

    def symbol(name: str, bound: frozenset[str] = frozenset()) -> str:
        key = re.sub(r"[{}\s\\]", "", TEXT.sub(r"\1", name))
        letters = sorted(bound.intersection(key.partition("_")[2]))  # a_i in a sum over i is a function of i
        return f" z_{{{numbers.setdefault(key, _FIRST + len(numbers))}}}{f'({chr(44).join(letters)})' * bool(letters)} "

    texts = [_with_symbols(text, symbol) for text in texts]
    letters = {letter for text in texts for letter in _NO_LETTER.sub("", text)}
    both = {letter for letter in letters if letter.isupper() and letter.lower() in letters}
    both |= {"T"} if any(map(_TRANSPOSED.search, texts)) else set()
    texts = [
        _CAPITAL.sub(lambda match: symbol(f"capital {match[1]}") if match[1] in both else match[0], text)
        for text in texts
    ]
    return [_POWER.sub(r"^{\1}", text) for text in texts]
