"""Show the contexts of a problem: what both roles share, what only the teacher sees.

With prompts.attention_reference, the teacher's context for the attention loss follows.

Takes a recipe, a YAML file or a run's folder, and the flags of `opasd train`. Loads the data and the tokenizer, but no
weights.
"""

import itertools
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from opasd.cli._flags import whole_number
from opasd.cli._options import ConfigParser, configured
from opasd.cli._parser import coloured
from opasd.cli._preview import check
from opasd.errors import ConfigError
from opasd.recipes import load_recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from opasd.prompts.contexts import PromptPair

_SIGNS = {"both": "=", "student": "<", "teacher": ">", "reference": "»"}
_COLOURS = {"both": "", "student": "33", "teacher": "36", "reference": "35"}
_SIDE_BY_SIDE = 80
"""Columns from which the contexts stand side by side; in fewer, one below the other."""


@dataclass(frozen=True)
class Part:
    """A run of tokens that both contexts have, or one of them."""

    owner: str
    """A key of `_SIGNS`."""
    student: range
    teacher: range


def parser() -> ConfigParser:
    """Return the command's parser."""
    usage = "opasd prompt RECIPE|RUN [--problem N] [options]"
    command = ConfigParser("prompt", __doc__, usage=usage, groups=("what", "the page"))
    command.option(
        "the page", "--problem", metavar="N", type=whole_number(1), default=1,
        help="Number of the problem in the training data. (default: 1)",
    )  # fmt: skip
    command.option(
        "the page", "--width", metavar="N", type=whole_number(20, 10_000), help="Columns. (default: the terminal's)"
    )
    return command


def run(args: list[str]) -> int:
    """The command."""
    command = parser()
    options, settings = command.split(args)
    command.require_source(options, settings)
    run_file = os.path.join(os.path.expanduser(options.source or ""), "config.yaml")
    is_run = options.source is not None and os.path.isfile(run_file)
    config = configured(load_recipe(run_file if is_run else options.source), settings)
    check(config, 1)
    from opasd.data.sets import load_set
    from opasd.model.loading import load_tokenizer
    from opasd.prompts.pairs import PromptBuilder

    problems = load_set(config.data, "train").problems
    if options.problem > len(problems):
        raise ConfigError(f"--problem: got {options.problem}, but {config.data.source} has {len(problems)} problems")
    tokenizer = load_tokenizer(config.model)
    pair = PromptBuilder(tokenizer, config.prompts).pair(problems[options.problem - 1])
    width = options.width or shutil.get_terminal_size((120, 24)).columns
    title = f"problem {options.problem} of {len(problems):,}"
    sys.stdout.write(page(pair, tokenizer, title, width, colour=coloured(sys.stdout)))
    return 0


def page(pair: "PromptPair", tokenizer: "PreTrainedTokenizerBase", title: str, width: int, *, colour: bool) -> str:
    """Return the contexts in two columns, or one below the other in a narrow terminal; two teachers' one by one."""
    if pair.attention is not None:
        contexts = {"the token loss (prompts.reference)": replace(pair, attention=None)}
        contexts["the attention loss (prompts.attention_reference)"] = pair.attention
        pages = (page(one, tokenizer, f"{title}, {name}", width, colour=colour) for name, one in contexts.items())
        return "\n".join(pages)
    sequence = list(parts(pair))
    both, student, teacher, reference = (
        sum(len(part.student or part.teacher) for part in sequence if part.owner == owner) for owner in _SIGNS
    )
    lines = [
        f"{title}, id {pair.problem.id}",
        f"student {len(pair.student_ids):,} tokens, teacher {len(pair.teacher_ids):,} tokens",
        f"  = {both:,} shared, < {student:,} only the student's, > {teacher:,} only the teacher's",
        f"  » {reference:,} of the reference, which only the teacher sees",
        "  ⟦…⟧ is a special token, ⏎ a line break",
    ]
    if pair.neutralised:
        lines.append("  the problem or its solution imitated the chat template and was made plain text")
    if pair.solution_tokens_cut:
        lines.append(f"  {pair.solution_tokens_cut:,} tokens of the solution did not fit and were cut")
    side_by_side = width >= _SIDE_BY_SIDE
    column = (width - 7) // 2 if side_by_side else max(20, width - 2)
    heading = f"  {'student':<{column}}   teacher" if side_by_side else ""
    lines += ["", heading] if heading else [""]
    for part in sequence:
        left = visible(tokenizer, [pair.student_ids[position] for position in part.student])
        right = visible(tokenizer, [pair.teacher_ids[position] for position in part.teacher])
        rows = _rows(part.owner, wrapped(left, column), wrapped(right, column), column if side_by_side else None)
        start, end = (f"\033[{_COLOURS[part.owner]}m", "\033[0m") if colour and _COLOURS[part.owner] else ("", "")
        lines += [f"{start}{row}{end}" for row in rows]
    return "\n".join(lines) + "\n"


def parts(pair: "PromptPair") -> Iterator[Part]:
    """Yield the parts of both contexts in order."""
    from opasd.prompts.alignment import align

    alignment = align(pair, 0)
    matches = list(zip(alignment.student_shared.tolist(), alignment.teacher_shared.tolist(), strict=True))
    student = teacher = 0
    shared: tuple[int, int] | None = None
    for s, t in [*matches, (len(pair.student_ids), len(pair.teacher_ids))]:
        if shared is not None and ((s, t) != (student, teacher) or s == len(pair.student_ids)):
            yield Part("both", range(shared[0], student), range(shared[1], teacher))
            shared = None
        if student < s:
            yield Part("student", range(student, s), range(0))
        for positions, owner in _teachers_own(pair, range(teacher, t)):
            yield Part(owner, range(0), positions)
        shared = (s, t) if shared is None else shared
        student, teacher = s + 1, t + 1


def _teachers_own(pair: "PromptPair", positions: range) -> Iterator[tuple[range, str]]:
    """Yield a stretch of the teacher's own tokens, divided where the reference begins and ends."""
    inside = range(max(positions.start, pair.reference.start), min(positions.stop, pair.reference.stop))
    if not inside:
        pieces = [(positions, "teacher")]
    else:
        before, after = range(positions.start, inside.start), range(inside.stop, positions.stop)
        pieces = [(before, "teacher"), (inside, "reference"), (after, "teacher")]
    yield from ((piece, owner) for piece, owner in pieces if piece)


def visible(tokenizer: "PreTrainedTokenizerBase", ids: Sequence[int]) -> str:
    """Return the text of tokens, with special tokens in brackets and every character visible."""
    special = set(tokenizer.all_special_ids) | {
        token for token, added in tokenizer.added_tokens_decoder.items() if added.special
    }
    text, plain = "", []
    for token in [*ids, None]:
        if token is None or token in special:
            text += str(tokenizer.decode(plain, clean_up_tokenization_spaces=False)) if plain else ""
            plain = []
            text += "" if token is None else f"⟦{tokenizer.convert_ids_to_tokens(token)}⟧"
        else:
            plain.append(token)
    return "".join(
        character if character == "\n" or character.isprintable() else f"⟨{ord(character):x}⟩" for character in text
    )


def wrapped(text: str, width: int) -> list[str]:
    """Return lines of at most `width` characters; a line break is shown and breaks the line."""
    lines = text.replace("\n", "⏎\n").splitlines()
    wrapper = textwrap.TextWrapper(width, expand_tabs=False, replace_whitespace=False, drop_whitespace=False)
    return [piece for line in lines for piece in wrapper.wrap(line)]


def _rows(owner: str, student: list[str], teacher: list[str], column: int | None) -> Iterator[str]:
    """Yield the lines of a part; without `column` one context stands for both."""
    sign = _SIGNS[owner]
    if column is None:
        yield from (f"{sign} {line}" for line in student or teacher)
        return
    for left, right in itertools.zip_longest(student, teacher, fillvalue=""):
        yield f"{sign} {left:<{column}} {sign} {right}".rstrip()
