"""Read an answer's text and count what the tables need, so that a record can keep the counts without the text.

All answers are searched for epistemic markers and leaks. Answers to arithmetic problems are also searched for their
form, their equations and a few signs. Leaks are found by the package's own wording, also if a run had another.
"""

import re
from collections import Counter
from typing import Any

from opasd.analysis.leaks import leak_pattern
from opasd.analysis.markers import count_markers
from opasd.config import PromptConfig

LEAK = leak_pattern(PromptConfig())
SOLUTION_STEP = re.compile(r"^\d+\. (?:Add|Subtract|Multiply by) \d+: \\\(\d+ \S+ \d+ = \d+\\\)\.$", re.MULTILINE)
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
    "endless": lambda text: is_endless(text),
}


def count_text(row: dict[str, Any], arithmetic: bool = True) -> dict[str, Any]:
    """Return an answer with counts in place of its text. An answer without a text is returned unchanged."""
    if "text" not in row:
        return row
    text = row["text"]
    leak = LEAK.search(text) if LEAK else None
    counts = {key: value for key, value in row.items() if key != "text"}
    counts |= {"markers": dict(count_markers(text)), "leak": leak is not None}
    if not arithmetic:
        return counts
    if leak:
        counts["leak_at"] = leak.start()
    verdicts = check_equations(text)
    signs = [name for name, test in SIGNS.items() if test(text)]
    return counts | {"form": form_of(text), "equations": [sum(verdicts), len(verdicts)], "signs": signs}


def form_of(text: str) -> str:
    """Return how an answer is written: as the solutions are, with code, or in another way."""
    return "solution's form" if len(SOLUTION_STEP.findall(text)) >= 4 else "code" if "```" in text else "other"


def check_equations(text: str) -> list[bool]:
    """Return whether each equation of two numbers is true. Equations in code do not count."""
    return [
        {"+": int(a) + int(b), "-": int(a) - int(b)}.get(sign, int(a) * int(b)) == int(c)
        for a, sign, b, c in EQUATION.findall(CODE.sub("", text))
    ]


def is_endless(text: str) -> bool:
    """Return whether a text has a number of 20 digits, the same eight words four times, or a sentence three times."""
    words = text.split()
    runs_of_words = Counter(zip(*(words[start:] for start in range(8)), strict=False))
    sentences = Counter(part.strip() for part in re.split(r"[\n.]+", text) if len(part.strip()) > 25)
    return (
        re.search(r"\d{20,}", text) is not None
        or max(runs_of_words.values(), default=0) >= 4
        or max(sentences.values(), default=0) >= 3
    )
