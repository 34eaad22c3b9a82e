"""One self-contained page: no network, light and dark, readable on a phone. Whatever a model wrote is escaped."""

from collections.abc import Mapping, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1b1d22; --soft: #667; --line: #d9dbe3; --back: #fff; --card: #f6f7fa;
  --s0: #7a7f8c; --s1: #d99a00; --s2: #3568e0; --good: #14804a; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e9ee; --soft: #9aa0ae; --line: #343844; --back: #15171c;
  --card: #1e2129; --s0: #9aa0ae; --s1: #f2bd42; --s2: #7aa2ff; --good: #58c98a; --bad: #ff8a80; } }
* { box-sizing: border-box } body { margin: 0; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif } main { max-width: 940px; margin: 0 auto; padding: 28px 18px 60px }
h1 { font-size: 1.6rem; margin: 0 0 4px } h2 { font-size: 1.15rem; margin: 34px 0 10px } p { margin: 8px 0 }
.soft, .tick { color: var(--soft) } .tick { fill: var(--soft); font-size: 11px }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
.wide { overflow-x: auto } th, td { text-align: right; padding: 7px 10px; border-bottom: 1px solid var(--line);
  white-space: nowrap } th:first-child, td:first-child { text-align: left } th { font-weight: 600 }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 360px), 1fr)); gap: 16px }
figure { margin: 0; background: var(--card); border-radius: 10px; padding: 12px } figcaption { font-weight: 600;
  font-size: .92rem } svg { width: 100%; height: auto } .grid { stroke: var(--line) } .line { fill: none;
  stroke-width: 2; stroke-linejoin: round } .s0 { stroke: var(--s0); color: var(--s0) } .s1 { stroke: var(--s1);
  color: var(--s1) } .s2 { stroke: var(--s2); color: var(--s2) } .key span { margin-right: 16px; font-weight: 600 }
.answers { display: grid; grid-template-columns: repeat(auto-fit, minmax(250px, 1fr)); gap: 12px }
.answers > div { background: var(--card); border-radius: 10px; padding: 10px 12px } pre { margin: 6px 0 0;
  white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; unicode-bidi: isolate }
.good { color: var(--good) }
.bad { color: var(--bad) } details { margin: 10px 0 } @media print { body { background: #fff; color: #000 } }
"""


def page(title: str, subtitle: str, sections: Sequence[str]) -> str:
    """The whole document; sections are HTML already."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p class="soft">{escape(subtitle)}</p>{"".join(sections)}</main></body></html>\n'
    )


def section(title: str, *content: str) -> str:
    """A heading and HTML below it."""
    return f"<section><h2>{escape(title)}</h2>{''.join(content)}</section>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of plain text."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def key(names: Sequence[str]) -> str:
    """Which colour is which."""
    spans = "".join(f'<span class="s{number}">{escape(name)}</span>' for number, name in enumerate(names))
    return f'<p class="key">{spans}</p>'


def answers(question: str, texts: Mapping[str, tuple[str, bool]]) -> str:
    """The same problem answered by several models, side by side."""
    cards = "".join(
        f'<div><b>{escape(name)}</b> <span class="{"good" if correct else "bad"}">{"right" if correct else "wrong"}'
        f"</span><pre>{escape(printable(text))}</pre></div>"
        for name, (text, correct) in texts.items()
    )
    return f'<details open><summary>{escape(printable(question))}</summary><div class="answers">{cards}</div></details>'


def printable(text: str) -> str:
    """Text without what a page cannot show: control characters and lone surrogates."""
    return (
        "".join(c if c in "\n\t" or c.isprintable() or ord(c) > 0x2000 else "�" for c in text)
        .encode("utf-8", "replace")
        .decode()
    )
