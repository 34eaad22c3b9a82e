"""What is read in an answer's text, so that its counts can stand in the text's place.

Markers and leaks in all answers; form, equations and signs in those to arithmetic problems. Leaks are found by the
package's own wording, whatever the run's.
"""

import re
from collections import Counter
from typing import Any

from opasd.analysis.leaks import leak_pattern
from opasd.analysis.markers import count_markers
from opasd.config import PromptConfig

LEAK = leak_pattern(PromptConfig())
assert LEAK is not None
LINE = re.compile(r"^\d+\. (?:Add|Subtract|Multiply by) \d+: \\\(\d+ \S+ \d+ = \d+\\\)\.$", re.MULTILINE)
"""A step of a solution."""
EQUATION = re.compile(r"(?<![\d.])(\d+)\s*(\+|-|\\times|\*|×|\\cdot)\s*(\d+)\s*=\s*(\d{1,7})(?![\d.])")
CODE = re.compile(r"```.*?```", re.DOTALL)
BACKWARDS = re.compile(r"\b(?:in reverse|backwards?|from the final answer|reverse order|reverse the)\b", re.IGNORECASE)
REFUSAL = re.compile(r"I(?:'m| am) sorry|I apologize", re.IGNORECASE)
PROVIDED = re.compile(r"\bsolution\b[^.]*\bprovided\b|\bprovided\b[^.]*\bsolution\b", re.IGNORECASE)
SIGNS = {
    "an output block": lambda text: "```output" in text,
    "the word reference": lambda text: "reference" in text.lower(),
    "a refusal": REFUSAL.match,
    "a solution that was provided": PROVIDED.search,
    "backwards": BACKWARDS.search,
    "endless": lambda text: endless(text),
}


def counted(row: dict[str, Any], arithmetic: bool = True) -> dict[str, Any]:
    """An answer with what is read in its text, in its place; without a text as it is."""
    if "text" not in row:
        return row
    text = row["text"]
    leak = LEAK.search(text)
    found = {key: value for key, value in row.items() if key != "text"}
    found |= {"markers": dict(count_markers(text)), "leak": leak is not None}
    if not arithmetic:
        return found
    judged = equations(text)
    if leak:
        found["leak_at"] = leak.start()
    signs = [name for name, test in SIGNS.items() if test(text)]
    return found | {"form": form(text), "equations": [sum(judged), len(judged)], "signs": signs}


def form(text: str) -> str:
    """How an answer is written: as the solutions are, with code, or otherwise."""
    return "solution's form" if len(LINE.findall(text)) >= 4 else "code" if "```" in text else "other"


def equations(text: str) -> list[bool]:
    """Whether each equation of two numbers is true; those in code are left out."""
    return [
        {"+": int(a) + int(b), "-": int(a) - int(b)}.get(sign, int(a) * int(b)) == int(c)
        for a, sign, b, c in EQUATION.findall(CODE.sub("", text))
    ]


def endless(text: str) -> bool:
    """A number of 20 digits or more, or eight words in a row four times, or a sentence three times."""
    words = text.split()
    rows = Counter(zip(*(words[start:] for start in range(8)), strict=False))
    sentences = Counter(part.strip() for part in re.split(r"[\n.]+", text) if len(part.strip()) > 25)
    return (
        re.search(r"\d{20,}", text) is not None
        or max(rows.values(), default=0) >= 4
        or max(sentences.values(), default=0) >= 3
    )
