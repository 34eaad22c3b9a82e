"""Check the pages: every link and anchor leads somewhere, every page is in the menu, every name in a page exists.

    python -m scripts.links

A page is a Markdown file of the repository's root, of docs/ or of .github/. Links to other sites are not followed.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
REFERENCE = re.compile(r"\[([^\]\[]+)\]\[([^\]\[]*)\]")
DEFINITION = re.compile(r"^\[([^\]\[^]+)\]:[ \t]*<?(\S+?)>?(?:[ \t].*)?$", re.MULTILINE)
NAME = re.compile(r"`opasd\.([A-Za-z_][\w.]*)")
SOURCE = re.compile(
    r"`((?:src|docs|tests|results|benchmarks|scripts|examples)/[\w./-]+\.(?:py|md|yaml|json|jsonl|txt|svg))`"
)


def problems(root: Path = ROOT) -> Iterator[str]:
    """Yield what is wrong in the pages of a repository, one line each."""
    pages = sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / ".github").rglob("*.md")])
    for page in pages:
        where = page.relative_to(root)
        text = without_code(page.read_text("utf-8"))
        defined = {label.lower(): target for label, target in DEFINITION.findall(text)}
        for target in [*LINK.findall(text), *defined.values()]:
            yield from (f"{where}: {why}" for why in _dead(page, target, root))
        for label in (label or shown for shown, label in REFERENCE.findall(text)):
            if label.lower() not in defined:
                yield f"{where}: the reference [{label}] is not defined"
        for name in SOURCE.findall(page.read_text("utf-8")):
            if not (root / name).exists():
                yield f"{where}: {name} is not there"
        for dotted in NAME.findall(page.read_text("utf-8")):
            if not _importable(root, dotted.rstrip(".")):
                yield f"{where}: opasd.{dotted} is not in the package"
    yield from _menu(root)


def without_code(text: str) -> str:
    """Return a page without its code blocks and spans."""
    return re.sub(r"`[^`\n]*`", "``", FENCE.sub("", text))


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as the site and GitHub make them."""
    found: dict[str, int] = {}
    names = set(re.findall(r"<a id=\"([^\"]+)\"", text))
    for heading in re.findall(r"^#{1,6}\s+(.*?)\s*#*$", FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        slug = re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", plain.lower()).strip())
        count = found.get(slug, -1) + 1
        found[slug] = count
        names.add(slug if not count else f"{slug}-{count}")
        names.add(slug if not count else f"{slug}_{count}")
        names.add(re.sub(r"-+", "-", slug))
    return names


def _dead(page: Path, target: str, root: Path) -> Iterator[str]:
    """Yield why a link of a page leads nowhere, if it does."""
    if re.match(r"[a-z][a-z+.-]*:", target):
        return
    path, _, anchor = target.partition("#")
    to = (page.parent / path).resolve() if path else page
    if not to.exists():
        yield f"the link {target} leads nowhere"
        return
    docs = root / "docs"
    if docs in page.parents and docs.resolve() not in to.parents and not to.is_dir():
        yield f"the link {target} leaves docs/, which the site cannot follow"
    if anchor and to.suffix == ".md" and anchor not in anchors(to.read_text("utf-8")):
        yield f"the link {target} names a heading that is not there"


def _importable(root: Path, dotted: str) -> bool:
    """Tell whether `opasd.DOTTED` is a module, or a name that its module's source has."""
    folder, parts = root / "src" / "opasd", dotted.split(".")
    while parts and (folder / parts[0]).is_dir():
        folder = folder / parts.pop(0)
    if not parts:
        return True
    source = folder / f"{parts[0]}.py"
    if source.exists():
        parts.pop(0)
    else:
        source = folder / "__init__.py"
    text = source.read_text("utf-8")
    return not parts or re.search(rf"\b{re.escape(parts[0])}\b", text) is not None


def _menu(root: Path) -> Iterator[str]:
    """Yield pages that the site's menu lacks, and entries of it that are no page."""
    path = root / "mkdocs.yml"
    listed = set(_entries(yaml.safe_load(path.read_text("utf-8")).get("nav", [])))
    there = {str(page.relative_to(root / "docs")) for page in (root / "docs").rglob("*.md")}
    yield from (f"docs/{name}: not in the menu (nav of mkdocs.yml)" for name in sorted(there - listed))
    yield from (f"mkdocs.yml: the menu names {name}, which is not there" for name in sorted(listed - there))


def _entries(menu: Any) -> Iterator[str]:
    if isinstance(menu, str):
        yield menu
    elif isinstance(menu, dict):
        for value in menu.values():
            yield from _entries(value)
    else:
        for value in menu:
            yield from _entries(value)


def main() -> None:
    """Print what is wrong and end with 1, or say that all is well."""
    found = list(problems())
    sys.stdout.write("".join(f"{line}\n" for line in found))
    sys.exit(f"links: {len(found)} problems" if found else None)


if __name__ == "__main__":
    main()
