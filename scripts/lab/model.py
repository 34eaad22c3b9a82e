"""The embedded chat model: its architecture, its tokenizer and where it lies.

    model = AutoModelForCausalLM.from_pretrained(model_path())

The tokenizer is a byte-level BPE whose merges come from the task's own words, so that a word or a number of it is
one token and any other text is still written without loss.
"""

import random
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from opasd.data.made.counts import make_puzzles
from scripts.lab.demos import Rates, make_demo

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3Config

END_OF_TEXT, TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
THINK, END_OF_THINK = "<think>", "</think>"
CONTEXT_TOKENS = 1024
SYSTEM_PROMPTS = ("You are a careful solver.", "You are a helpful assistant.", "Answer briefly and clearly.")

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking -%}
{{ '<think>\\n\\n</think>\\n\\n' }}
{%- endif -%}
{%- endif -%}
"""

_PIECES = r" ?\p{L}+| ?\p{N}{1,2}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SIZES: dict[str, dict[str, Any]] = {
    "small": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4},
    "base": {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 6},
    "lookup": {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 8},
    "lookup_large": {"hidden_size": 384, "intermediate_size": 1152, "num_hidden_layers": 6, "num_attention_heads": 12},
}


def token_id(tokenizer: "PreTrainedTokenizerFast", token: str) -> int:
    """The id of a single token."""
    found = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(found, int)
    return found


def make_config(tokenizer: "PreTrainedTokenizerFast", size: str) -> "Qwen3Config":
    """A small Qwen3 with tied embeddings."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        **SIZES[size],
        num_key_value_heads=SIZES[size]["num_attention_heads"],
        head_dim=32,
        max_position_embeddings=CONTEXT_TOKENS,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=token_id(tokenizer, END_OF_TURN),
        pad_token_id=token_id(tokenizer, END_OF_TEXT),
    )


def make_tokenizer(wordings: list[str], corpus: list[str] | None = None) -> "PreTrainedTokenizerFast":
    """The tokenizer, from a task's texts (those of `lab` by default) and the wordings around them."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,  # never reached: training ends when every word of the corpus is one token
        min_frequency=1,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator((_corpus() if corpus is None else corpus) + wordings, trainer)
    special = (END_OF_TEXT, TURN, END_OF_TURN)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in (THINK, END_OF_THINK)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def _corpus() -> list[str]:
    """Every word of the task, in the places where it occurs."""
    rng = random.Random("opasd-lab-tokenizer")
    texts = ["system\n", "user\n", "assistant\n", "\n\n", *SYSTEM_PROMPTS]
    texts += [f"{count} {{{count}}}" for count in range(100)] * 20
    for puzzle in make_puzzles("pretrain", 3000, seed=-1):
        for kind in ("thinking", "privileged"):
            demo = make_demo(puzzle, kind, Rates(), rng)
            texts += [demo.question, demo.reference, "".join(text for text, _ in demo.segments)]
    return texts
