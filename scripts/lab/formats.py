"""The contexts of pretraining and measuring, as text: the product's own wordings in the model's own chat template.

`PromptBuilder` makes the same contexts one by one, with checks; this makes millions, and a test holds them equal.
"""

from typing import TYPE_CHECKING

from opasd.config import PromptConfig
from opasd.prompts.wording import Wording
from scripts.lab.demos import Kind

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_STAND_IN = "lab-stand-in"


class Formats:
    """Renders contexts with one tokenizer and one wording."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast", config: PromptConfig | None = None) -> None:
        self._tokenizer = tokenizer
        self._config = config or PromptConfig()
        wording = self._config
        self._student = Wording.parse("prompts.student", wording.student, once={"question", "instruction"})
        self._teacher = Wording.parse("prompts.teacher", wording.teacher, once={"question", "reference", "instruction"})
        self._shown, *others = sorted(wording.reference_fields())
        assert not others, "a reference of this model shows one field"
        self._reference = Wording.parse("prompts.reference", wording.reference, once={self._shown})
        self._frames: dict[tuple[bool, str], tuple[str, str]] = {}

    def prompt(self, kind: Kind, question: str, reference: str = "", system: str = "") -> str:
        """The context in which a response of the kind is written."""
        fields = {"question": question, "instruction": self._config.instruction}
        if kind == "privileged":
            fields["reference"] = self._reference.fill({self._shown: reference}).text
        before, after = self._frame(kind != "student", system)
        return before + (self._teacher if kind == "privileged" else self._student).fill(fields).text + after

    def _frame(self, thinking: bool, system: str) -> tuple[str, str]:
        """What the template writes before and after a message."""
        if (thinking, system) not in self._frames:
            messages = [{"role": "system", "content": system}] if system else []
            rendered = self._tokenizer.apply_chat_template(
                [*messages, {"role": "user", "content": _STAND_IN}],
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=thinking,
            )
            assert isinstance(rendered, str)
            before, after = rendered.split(_STAND_IN)
            self._frames[thinking, system] = (before, after)
        return self._frames[thinking, system]


def wordings(config: PromptConfig | None = None) -> list[str]:
    """The texts around problems and solutions, for the tokenizer."""
    config = config or PromptConfig()
    return [config.student, config.teacher, config.reference, config.instruction]
