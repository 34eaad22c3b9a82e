r"""Rows and what only places an answer on the page: aligned equations, systems, pieces of a function.

in_one_line(r"\begin{cases}x=1\\y=2\end{cases}")       "x=1, y=2"
in_one_line(r"\begin{aligned}x&=1+1\\&=2\end{aligned}")    "x=1+1=2"
pieces(r"\begin{cases}x&x>0\\0&x\le 0\end{cases}")     ("", [("x", "x>0"), ("0", r"x\le 0")])
upright(r"(1,2)^T")                                    r"\begin{pmatrix}1\\2\end{pmatrix}"
"""

import re

Pieces = tuple[str, list[tuple[str, str]]]
"""The name of a function, or nothing, and its values with their conditions."""
_LONGEST = 1000
_SPACING = re.compile(
    r"\\[hv]space\s*\*?\s*\{[^{}]*\}|\\(?:[hv]?phantom|label|tag)\s*\*?\s*\{[^{}]*\}"
    r"|\\(?:text|script|scriptscript)style(?![a-zA-Z])|\\(?:nolimits|normalsize|small|tiny)(?![a-zA-Z])"
)
_END = re.compile(r"(?:\s|(?<!\\)\\\\|\\(?:newline|square|blacksquare|Box|qed)(?![a-zA-Z]))+$")
_SYSTEM = re.compile(
    r"(?:\\left)?\s*\\\{\s*\\begin\s*\{(?:array\}\s*\{[lcr ]*|aligned)\}(.*?)\\end\s*\{(?:array|aligned)\}"
    r"\s*(?:\\right\s*\.)?",
    re.DOTALL,
)
_ENVIRONMENT = re.compile(
    r"\\begin\s*\{(cases|(?:align|gather|equation)\*?|aligned|gathered|split)\}(.*?)\\end\s*\{\1\}", re.DOTALL
)
_ROW = re.compile(r"\\\\(?:\[[^\[\]]*\])?")
_ALIGNMENT = re.compile(r"&\s*(?=[=<>≤≥]|\\(?:leq?|geq?|lt|gt|neq?|approx|equiv)(?![a-zA-Z]))|^\s*&|&\s*$")
_CASES = re.compile(r"\s*(?:([^=]*\S)\s*=\s*)?\\begin\{cases\}(.*)\\end\{cases\}[\s.]*", re.DOTALL)
_IF = re.compile(r"^\s*(?:\\text\s*\{\s*,?\s*(?:if|for|when|where)?\s*\}|(?:if|for|when)(?![a-zA-Z]))\s*")
SAYS = r"[=<>≤≥]|\\(?:leq?|geq?|lt|gt|neq?|in)(?![a-zA-Z])"
_COMMA_PIECE = re.compile(rf"((?:(?!{SAYS}|[,;]).)+)[,;](?=.*(?:{SAYS}|\\text|otherwise|odd|even|else))", re.DOTALL)
_TRANSPOSED = re.compile(
    r"(?:\\begin\s*\{([pb]matrix)\}((?:(?!\\begin).)*?)\\end\s*\{\1\}|[(\[]([^()\[\]]*,[^()\[\]]*)[)\]])"
    r"\s*\^\s*\{?\s*(?:T(?![a-zA-Z])|\\(?:top|intercal)(?![a-zA-Z])|\\(?:text|mathsf|mathrm)\s*(?:\{\s*T\s*\}|T))\s*\}?",
    re.DOTALL,
)
_STOP = re.compile(r"[\s,;.]+$")


def in_one_line(text: str) -> str:
    """Return the text with rows that are no pieces of a function side by side, and without space and marks for it."""
    text = text.removeprefix("&")
    if "\\" not in text or len(text) > _LONGEST:
        return text
    text = _END.sub("", _SPACING.sub(" ", text))
    if "\\begin" in text:
        text = _SYSTEM.sub(r"\\begin{cases}\1\\end{cases}", text)
        text = _ENVIRONMENT.sub(_joined, text)
    return text


def _rows(body: str) -> list[str]:
    """Return the rows; one that begins with a sign continues the one before."""
    rows: list[str] = []
    for row in _ROW.split(body):
        row = _STOP.sub("", _ALIGNMENT.sub("", row)).strip()
        if row.startswith("=") and rows:
            rows[-1] += row
        elif row:
            rows.append(row)
    return rows


def _joined(environment: re.Match[str]) -> str:
    rows = _rows(environment[2])
    if environment[1] == "cases" and rows and all(map(_COMMA_PIECE.match, rows)):
        rows = [row if "&" in row else _COMMA_PIECE.sub(r"\1 &", row, count=1) for row in rows]
    if environment[1] == "cases" and any("&" in row for row in rows):
        return "\\begin{cases}" + " \\\\ ".join(rows) + "\\end{cases}"
    return ", ".join(rows)


def pieces(text: str) -> Pieces | None:
    """Return the name of a function in pieces, and each with its condition; None if it is none."""
    if "{cases}" not in text or (cases := _CASES.fullmatch(text)) is None:
        return None
    rows = [row.split("&") for row in _ROW.split(cases[2])]
    if any(len(row) != 2 for row in rows):
        return None
    return cases[1] or "", [(_STOP.sub("", value).strip(), _IF.sub("", condition).strip()) for value, condition in rows]


def upright(text: str) -> str:
    """Return the text with every transposed matrix or tuple as the matrix that it is."""
    return _TRANSPOSED.sub(_upright, text) if "^" in text else text


def _upright(transposed: re.Match[str]) -> str:
    kind, body, items = transposed.groups()
    rows = [row.split("&") for row in _ROW.split(body)] if kind else [items.split(",")]
    if len({*map(len, rows)}) > 1:
        return transposed[0]
    columns = (" & ".join(cell.strip() for cell in column) for column in zip(*rows, strict=True))
    return f"\\begin{{{kind or 'pmatrix'}}}" + " \\\\ ".join(columns) + f"\\end{{{kind or 'pmatrix'}}}"
