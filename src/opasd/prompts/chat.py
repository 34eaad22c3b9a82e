"""Put one user message into the model's own chat template: as text, token ids and character offsets.

This is the only module that calls a chat template. A template is a frame: it writes some text before the message and
some after it. A stand-in message shows the frame once. Every real message must come out inside that frame, unchanged or
trimmed at its ends. Anything else means that the text changed what the template does, and is an error.

    text = before + message + after,    ids = tokens of text (the template writes its own BOS)

A tokenizer without a chat template gets plain text: its BOS if it normally adds one, the system prompt and an empty
line if there is one, the message, a line break.
"""

import re
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np

from opasd.errors import ConfigError, PromptError
from opasd.prompts.wording import Span

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ZERO_WIDTH = "\u200b"
"""Inserted after the first character of an imitated control token, which then reads the same but is plain text."""

THINK_TAGS = frozenset({"<think>", "</think>"})
_STAND_IN = "opasd-stand-in-message"
_TAG = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")
_BAR_TAG = re.compile(r"<[|｜][^<>\s]+?[|｜]>")
"""A tag that no ordinary text has: <|system|>, <|fim_prefix|>."""
_HEADER = re.compile(r"#+ ?\S.*|\S.*:")
"""A line between turns that names a role: `### Instruction`, `USER:`."""
_LONGEST_HEADER = 40
_TURNS = (("system", "user", "assistant", "user"), ("user", "assistant", "user"), ("user", "assistant", "tool"))
"""Conversations that show what a template writes between turns; some templates refuse some of them."""
# A shorter generation prompt ("A:") is too common in ordinary text to count as a control string.
_SHORTEST_MARKER = 4
_LONGEST_S = 10.0
"""Seconds of the processor's time for one text; a template takes milliseconds."""
_OUR_OPTIONS = frozenset({"conversation", "tokenize", "add_generation_prompt", "enable_thinking", "thinking"})

Request = tuple[str, bool]
"""A message and whether the model may think before it answers."""


@dataclass(frozen=True)
class Rendered:
    """The text of a context, and the position of the message in it."""

    text: str
    message: Span
    """Characters of `text` that are the message as the template wrote it."""
    origin: int
    """Position in `text` of the message's first character if the template had trimmed nothing."""
    system: Span = field(default=(0, 0), kw_only=True)
    """Characters of `text` that are the configured system prompt; empty without one."""


@dataclass(frozen=True)
class Encoded(Rendered):
    """A context with its token ids and their character offsets."""

    ids: tuple[int, ...]
    offsets: tuple[Span, ...]

    def span(self, span: Span) -> Span:
        """Return the characters of `text` for a span of the message, without what the template trimmed."""
        start, end = (min(max(self.origin + edge, self.message[0]), self.message[1]) for edge in span)
        return start, end

    def tokens(self, span: Span) -> range:
        """Return the positions from the first to the last token with a character of `span` (in `text`)."""
        starts, ends = self._edges
        return _overlapping(starts, ends, span)

    def tokens_touching(self, span: Span) -> range:
        """Like `tokens`, but a character without a token (trimmed or composed away) counts for both neighbours."""
        starts, ends = self._edges
        first, last = np.minimum(starts, [0, *ends[:-1]]), np.maximum(ends, [*starts[1:], len(self.text)])
        return _overlapping(first, last, span)

    @cached_property
    def template(self) -> tuple[range, ...]:
        """The tokens that are the chat template's alone, without a character of the message or the system prompt."""
        parts = sorted((self.tokens(self.system), self.tokens(self.message)), key=lambda part: part.start)
        edges = [0, *(edge for part in parts if part for edge in (part.start, part.stop)), len(self.ids)]
        gaps = (range(first, last) for first, last in zip(edges[::2], edges[1::2], strict=True))
        return tuple(gap for gap in gaps if gap)

    @cached_property
    def _edges(self) -> np.ndarray:
        """[2, tokens] Where each token starts and ends."""
        return np.array(self.offsets, dtype=int).reshape(-1, 2).T


def _headers(separator: str, strings: set[str]) -> set[str]:
    """Return the role headers in plain text of what a template writes between turns; `strings` are its other marks."""
    marks = "|".join(re.escape(string) for string in sorted(strings, key=len, reverse=True) if string)
    lines = [line.strip() for part in re.split(marks, separator) for line in part.splitlines()]
    return {line for line in lines if _SHORTEST_MARKER <= len(line) <= _LONGEST_HEADER and _HEADER.fullmatch(line)}


@contextmanager
def _ending() -> Iterator[None]:
    """Refuse a template that does not end: the sandbox that it runs in bounds no time. Main thread only."""

    def too_long(_number: int, _frame: FrameType | None) -> None:
        raise ConfigError(f"it does not end within {_LONGEST_S:g} s of the processor's time")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, _LONGEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


def _overlapping(starts: np.ndarray, ends: np.ndarray, span: Span) -> range:
    hits = np.flatnonzero((starts < span[1]) & (ends > span[0])).tolist()
    return range(hits[0], hits[-1] + 1) if hits else range(0)


class Chat:
    """The chat template and tokenizer of one model, with one system prompt for all contexts."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        system: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if not tokenizer.is_fast:
            raise ConfigError(
                f"{type(tokenizer).__name__} has no fast backend and gives no character offsets, which alignment "
                "needs; load a tokenizer with a tokenizer.json"
            )
        if taken := _OUR_OPTIONS & set(options or {}):
            raise ConfigError(
                f"template_options may not set {', '.join(sorted(taken))}: student_thinking and teacher_thinking set "
                "the thinking mode, the program sets the others; remove them"
            )
        self._tokenizer = tokenizer
        self._system = system
        self._options = dict(options or {})
        self._has_template = tokenizer.chat_template is not None
        self._frames = {thinking: self._frame(thinking) for thinking in (False, True)}
        self._control_ids = {
            token_id: token.content
            for token_id, token in tokenizer.added_tokens_decoder.items()
            if token.content in self.control_strings
        }

    def encode(self, message: str, *, thinking: bool) -> Encoded:
        """Return the context in which the model answers `message`."""
        return self._tokenise([self._render(message, thinking)])[0]

    def encode_many(self, requests: Iterable[Request]) -> dict[Request, Encoded]:
        """Encode several messages in one call, which uses all cores; leave out those that `encode` refuses."""
        rendered: dict[Request, Rendered] = {}
        for message, thinking in requests:
            with suppress(PromptError):
                rendered[message, thinking] = self._render(message, thinking)
        return dict(zip(rendered, self._tokenise(list(rendered.values())), strict=True))

    def _tokenise(self, contexts: Sequence[Rendered]) -> list[Encoded]:
        if not contexts:
            return []
        texts = [context.text for context in contexts]
        tokens = self._tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return [
            Encoded(context.text, context.message, context.origin, tuple(ids), tuple(offsets), system=context.system)
            for context, ids, offsets in zip(contexts, tokens["input_ids"], tokens["offset_mapping"], strict=True)
        ]

    @cached_property
    def control_strings(self) -> frozenset[str]:
        """Text that ends a turn, begins one or switches thinking: special tokens and text that the template writes.

        White-space tokens and ordinary markup in the vocabulary (Gemma's HTML tags) are no control strings.
        """
        source = self._tokenizer.get_chat_template() if self._has_template else ""
        added = self._tokenizer.added_tokens_decoder.values()
        strings = {token.content for token in added if token.special}
        strings |= {token.content for token in added if token.content in source and _TAG.fullmatch(token.content)}
        strings |= {token.content for token in added if _BAR_TAG.fullmatch(token.content)}
        strings |= set(_BAR_TAG.findall(source))
        strings |= {str(token) for token in self._tokenizer.all_special_tokens} | THINK_TAGS
        for before, after in self._frames.values():
            own_before = before.rpartition(self._system)[2] if self._system else before
            strings |= set(_TAG.findall(own_before + after))
            strings |= {line.strip() for line in after.splitlines() if len(line.strip()) >= _SHORTEST_MARKER}
        for separator in self._separators():
            strings |= set(_TAG.findall(separator)) | _headers(separator, strings)
        return frozenset(string for string in strings if string.strip())

    def _separators(self) -> Iterator[str]:
        """Yield what the template writes before, between and after the turns of a conversation."""
        for roles in _TURNS if self._has_template else ():
            texts = [f"{_STAND_IN}-{number}" for number in range(len(roles))]
            turns = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
            try:
                rendered = self._write(turns, thinking=False)
            except ConfigError:  # it does not end
                raise
            except (jinja2.TemplateError, TypeError, ValueError):
                continue
            yield from re.split("|".join(texts), rendered)

    def find_control_string(self, text: str) -> str | None:
        """Return the first control string in `text`, if there is one."""
        match = self._imitation.search(text)
        return match["string"] if match else None

    def neutralise(self, text: str) -> str:
        """Return `text` with a zero-width character inside every control string."""
        return self._imitation.sub(lambda match: match["first"] + ZERO_WIDTH, text)

    def find_control_token(self, encoded: Encoded, span: Span) -> str | None:
        """Return the first control token that text of `span` (in the context) became, if there is one."""
        tokens = encoded.tokens(span)
        for position, token_id in enumerate(encoded.ids[tokens.start : tokens.stop], tokens.start):
            if token_id not in self._control_ids:
                continue
            content = self._control_ids[token_id]
            start, end = encoded.offsets[position]
            # A control token of the frame may swallow the white space around the message.
            text = encoded.text[max(start, span[0]) : min(end, span[1])].strip()
            is_unknown = token_id == self._tokenizer.unk_token_id and text != content
            if text and not is_unknown:
                return content
        return None

    @cached_property
    def _imitation(self) -> re.Pattern[str]:
        # Looking ahead finds occurrences that overlap; the set of first characters makes a thousand tokens cheap.
        strings = sorted((string for string in self.control_strings if len(string) > 1), key=len, reverse=True)
        firsts = "".join(re.escape(first) for first in sorted({string[0] for string in strings}))
        return re.compile(
            f"(?=[{firsts}])(?=(?P<string>{'|'.join(map(re.escape, strings))}))(?P<first>.)", flags=re.DOTALL
        )

    def _apply_template(self, message: str, thinking: bool) -> str:
        if not self._has_template:
            bos = self._tokenizer.bos_token if self._adds_bos else ""
            system = f"{self._system}\n\n" if self._system else ""
            return f"{bos}{system}{message}\n"
        conversation = [{"role": "system", "content": self._system}] if self._system else []
        return self._write([*conversation, {"role": "user", "content": message}], thinking)

    def _write(self, conversation: list[dict[str, str]], thinking: bool) -> str:
        try:
            with _ending():
                rendered = self._tokenizer.apply_chat_template(
                    conversation,
                    tokenize=False,
                    add_generation_prompt=True,
                    # Model families name the switch differently; a template ignores variables that it does not know.
                    enable_thinking=thinking,
                    thinking=thinking,
                    **self._options,
                )
        except (ArithmeticError, LookupError, AttributeError, MemoryError, RecursionError) as error:
            raise jinja2.TemplateError(f"{type(error).__name__}: {error}"[:200]) from error
        assert isinstance(rendered, str)
        return rendered

    @cached_property
    def _adds_bos(self) -> bool:
        ids = self._tokenizer("a")["input_ids"]
        return bool(ids) and ids[0] == self._tokenizer.bos_token_id and len(ids) > 1

    def _frame(self, thinking: bool) -> tuple[str, str]:
        """Return the text that the template writes before and after a message."""
        try:
            rendered = self._apply_template(_STAND_IN, thinking)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            hint = "leave `system` unset and put it into the wording" if self._system else "check template_options"
            raise ConfigError(f"the chat template cannot render one user message: {error}; {hint}") from error
        before, *rest = rendered.split(_STAND_IN)
        if len(rest) != 1:
            raise ConfigError(
                f"the chat template writes a user message {len(rest)} times, not once; use one that keeps it whole"
            )
        if self._system and self._system.strip() not in rendered:
            raise ConfigError("the chat template drops the system prompt; leave `system` unset or use another template")
        return before, rest[0]

    def _render(self, message: str, thinking: bool) -> Rendered:
        """Put the message into the first frame, and check that the template writes nothing else."""
        try:
            rendered = self._apply_template(message, thinking)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise PromptError(f"the chat template refuses this text: {error}; remove the row", "template") from error
        frame = self._frames[thinking]
        if not (rendered.startswith(frame[0]) and rendered.endswith(frame[1])):
            # A template may write today's date; contexts keep the date of the first one.
            frame = self._frame(thinking)
        written = rendered[len(frame[0]) : len(rendered) - len(frame[1])]
        if rendered != frame[0] + written + frame[1] or written.strip() != message.strip():
            raise PromptError(
                f"the chat template treats this text as more than a user's message: it wrote {rendered[-300:]!r}; "
                "remove the row or change the wording",
                "template",
            )
        before, after = self._frames[thinking]
        start, trimmed = len(before), message.index(written)
        system = (self._system or "").strip()
        at = before.rfind(system) if system else start
        return Rendered(
            before + written + after, (start, start + len(written)), start - trimmed, system=(at, at + len(system))
        )
