r"""Variables that the parser does not know, in a form that it does.

plain_symbols([r"\lambda_{\text{red}}/E_1", …])   [r"z_{900}/z_{901}", …]; the same symbol is the same in all texts

These are letters with an index, an accent or a prime, derivatives, ħ and γ. The parser also takes M for m, so that
capitals of letters that occur in both sizes become such symbols too.
"""

import re
from collections.abc import Sequence

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
_DERIVATIVE = rf"\\frac\s*\{{\s*d\s*{_ORDER}\s*{_ANY}\s*\}}\s*\{{\s*d\s*{_ANY}\s*{_ORDER}\s*\}}"
# The parser takes these for functions.
_CONSTANT = r"\\(?:hbar|gamma|beta|eta)(?![a-zA-Z])|\\(?:zeta|Gamma)(?![a-zA-Z])(?!\s*(?:\\left\s*)?\()"
# The second part keeps a command with its own index, \sum_{k=1} or \log_2, and words as they are.
_SYMBOL = re.compile(
    rf"({_DERIVATIVE}|(?<!\\){_INDEXED}|{_CONSTANT})|\\text\s*\{{[^{{}}]*\}}|\\[a-zA-Z]+(?:\s*{_INDEX})?"
)
_CAPITAL = re.compile(r"\\text\s*\{[^{}]*\}|\\[a-zA-Z]+|([A-Z])")
_NO_LETTER = re.compile(r"\\text\s*\{[^{}]*\}|\\[a-zA-Z]+|z_\{\d+\}")
_FIRST = 900


def plain_symbols(texts: Sequence[str]) -> list[str]:
    """Return the texts with every such symbol as an indexed z; the same symbol has the same index."""
    numbers: dict[str, int] = {}

    def symbol(name: str) -> str:
        key = re.sub(r"[{}\s\\]", "", TEXT.sub(r"\1", name))
        return f" z_{{{numbers.setdefault(key, _FIRST + len(numbers))}}} "

    texts = [_SYMBOL.sub(lambda match: symbol(match[0]) if match[1] else match[0], text) for text in texts]
    letters = {letter for text in texts for letter in _NO_LETTER.sub("", text)}
    both = {letter for letter in letters if letter.isupper() and letter.lower() in letters}
    return [
        _CAPITAL.sub(lambda match: symbol(f"capital {match[1]}") if match[1] in both else match[0], text)
        for text in texts
    ]
