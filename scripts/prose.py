"""Check the English of the pages: short sentences, no machine-made phrases, no shouting.

    python -m scripts.prose            # `--words` prints words, words a sentence and numbers of each page

README, start, tutorials, how-tos, FAQ and coming-from: under 20 words a sentence on average, none above 40. Other pages
that people write: none above 60. Spelling is codespell's (`make check`).
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from scripts.links import FENCE

ROOT = Path(__file__).parents[1]
AVERAGE, LONGEST, LONGEST_ELSEWHERE = 20, 40, 60
FIRST_READ = (
    *("README.md", "docs/index.md", "docs/start.md", "docs/faq.md"),
    *("docs/tutorials/*.md", "docs/howto/*.md", "docs/coming-from/*.md"),
)
MADE = ("docs/reference.md", "docs/reference/*.md", "docs/reliability.md")
"""Pages that code writes."""
PHRASES = (
    *("delve", "leverage", "seamless", "cutting-edge", "state-of-the-art", "game-chang", "unlock the", "empower"),
    *("it's important to note", "it is important to note", "it is worth noting", "it's worth noting", "in conclusion"),
    *("in today's", "fast-paced", "a testament to", "tapestry", "rich ecosystem", "robust and", "holistic", "synerg"),
    *("furthermore", "moreover", "additionally,", "in summary", "let's dive", "dive into", "deep dive", "embark"),
    *("not only", "plays a crucial role", "plays a vital role", "paradigm", "harness the", "elevate your", "pivotal"),
    *("whether you're", "look no further", "streamline", "effortless", "comprehensive guide", "at the heart of"),
    *("supercharge", "revolutioni", "blazing", "simply put", "needless to say", "utilize", "in order to"),
)
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|vs|etc|cf|Eq|Sec|Fig|No|approx)\.$")


def sentences(text: str) -> list[str]:
    """Return the sentences of a page: no code, tables, headings, comments or links' addresses."""
    text = re.sub(r"<!--.*?-->", "", FENCE.sub("\n\n", text), flags=re.DOTALL)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "code", text)
    blocks: list[str] = [""]
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", "|", "<", "!!!", "$$", "---")) or line.startswith("    "):
            blocks.append("")
        elif re.match(r"([-*]|\d+\.)\s", stripped):
            blocks.append(re.sub(r"^([-*]|\d+\.)\s+", "", stripped))
        else:
            blocks[-1] += " " + stripped
    found = []
    for block in blocks:
        part = ""
        for piece in re.split(r"(?<=[.!?])[)\"”*]*\s+", block.replace("**", "").strip()):
            part = f"{part} {piece}".strip()
            if not ABBREVIATION.search(part):
                found.append(part)
                part = ""
        found.append(part)
    return [one for one in found if words(one)]


def words(sentence: str) -> int:
    """Return how many words and numbers a sentence has; signs alone are none."""
    return sum(1 for word in sentence.split() if re.search(r"\w", word))


def figures(text: str) -> int:
    """Return how many numbers a page has, tables included, code and the addresses of links left out."""
    plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "", FENCE.sub("", text)))
    return len(re.findall(r"(?<![\w.])\d[\d,.]*(?:e-?\d+)?(?!\w)", plain))


def pages(root: Path = ROOT) -> Iterator[tuple[Path, bool]]:
    """Yield every page that people write, and whether it is one of those that newcomers read first."""
    made = {path for pattern in MADE for path in root.glob(pattern)}
    first = {path for pattern in FIRST_READ for path in root.glob(pattern)}
    for path in sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")]):
        if path not in made and path.name != "CHANGELOG.md":
            yield path, path in first


def problems(path: Path, first: bool, where: str) -> Iterator[str]:
    """Yield what is wrong with the English of one page."""
    text = path.read_text("utf-8")
    found = sentences(text)
    average = sum(map(words, found)) / max(len(found), 1)
    if first and average >= AVERAGE:
        yield f"{where}: {average:.1f} words a sentence; fewer than {AVERAGE} are wanted"
    longest = LONGEST if first else LONGEST_ELSEWHERE
    for sentence in found:
        if words(sentence) > longest:
            yield f"{where}: {words(sentence)} words in one sentence, at most {longest}: {sentence[:90]}…"
    lower = re.sub(r"\s+", " ", FENCE.sub("", text)).lower()
    for phrase in PHRASES:
        if phrase in lower:
            yield f"{where}: {phrase!r} says nothing; leave it out"


def main() -> None:
    """Print what is wrong and end with 1, or the figures of each page."""
    parser = argparse.ArgumentParser(description="Check the English of the pages.")
    parser.add_argument("--words", action="store_true", help="print words, words a sentence, numbers in 100 words")
    shown = parser.parse_args().words
    found, total = [], 0
    for path, first in pages():
        where = str(path.relative_to(ROOT))
        found += problems(path, first, where)
        text = path.read_text("utf-8")
        size, parts = len(text.split()), [words(one) for one in sentences(text)]
        total += size
        if shown:
            average, dense = sum(parts) / max(len(parts), 1), 100 * figures(text) / size
            sys.stdout.write(f"{size:6} words {average:5.1f} a sentence {dense:5.1f} numbers in 100 words  {where}\n")
    if shown:
        sys.stdout.write(f"{total:6} words in all\n")
    sys.stdout.write("".join(f"{line}\n" for line in found))
    sys.exit(f"prose: {len(found)} problems" if found else None)


if __name__ == "__main__":
    main()
