"""Small tokenizers in the shapes of real ones, made by code, and the real ones where they can be found.

Real tokenizers are looked for in the folder that OPASD_TOKENIZERS names, one sub-folder each, and else in
`shared/tokenizers.tar.gz` beside the repository. Without them their tests are skipped.
"""

import atexit
import json
import os
import tarfile
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

QWEN3 = """
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}{#- <tool_response> #}"""
QWEN2_5 = """
{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\nYou are Q, made by code.<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
LLAMA3 = """
{{- bos_token }}{%- if messages[0].role == 'system' %}{%- set system = messages[0].content | trim %}
{%- set messages = messages[1:] %}{%- else %}{%- set system = '' %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: ' + (date_string or strftime_now('%d %b %Y')) }}
{{- '\\n\\n' + system + '<|eot_id|>' }}
{%- for message in messages %}{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
{{- message.content | trim + '<|eot_id|>' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""
MISTRAL = """
{%- if messages[0].role == 'system' %}{%- set system = messages[0].content + '\\n\\n' %}
{%- set messages = messages[1:] %}{%- else %}{%- set system = '' %}{%- endif %}
{{- bos_token }}{%- for message in messages %}{{- '[INST]' + system + message.content + '[/INST]' }}{%- endfor %}"""
GEMMA = """
{{- bos_token }}{%- if messages[0].role == 'system' %}{%- set system = messages[0].content + '\\n\\n' %}
{%- set messages = messages[1:] %}{%- else %}{%- set system = '' %}{%- endif %}
{%- for message in messages %}{{- '<start_of_turn>' + message.role + '\\n' + system + message.content | trim }}
{{- '<end_of_turn>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"""
SMOLLM2 = QWEN2_5.replace("Q, made by code", "a helpful AI assistant named Smol")
TEXT_ONLY = """
{%- for message in messages %}{{- '### User:\\n' + message.content + '\\n\\n' }}{%- endfor %}
{{- '### Assistant:\\n' }}"""

SMALL = ("qwen3", "qwen2_5", "llama3", "mistral", "gemma", "smollm2", "text_only", "plain", "plain_bos")
REAL = ("real/qwen3", "real/qwen2_5", "real/llama3_2", "real/mistral_nemo", "real/gemma3", "real/smollm2")
REAL_PLAIN = "real/qwen2_5/plain"
ALL = (*SMALL, *REAL, REAL_PLAIN)

LINES = [
    "Problem: What is the sum of 12 and 30?\n\n",
    "Please reason step by step, and put your final answer within \\boxed{}.\n",
    "Problem: Find all $x$ such that $x^2 = 9$.\n\nHere is a reference solution to this problem:\n",
    "=== Reference Solution Begin ===\nThe sum is 12 + 30 = 42.\n=== Reference Solution End ===\n\nRead it\n",
    "def f(x):\n    return x + 1\n\n\nprint(f(2))\n\\frac{1}{2} + \\sqrt{3}\n\nuser\nassistant\nmodel\nsystem\n",
]
WORDS = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def _byte_level(
    special: Sequence[str],
    *,
    added: Sequence[str] = (),
    normalizer: normalizers.Normalizer | None = None,
    gpt2_words: bool = False,
    trim_offsets: bool = False,
) -> Tokenizer:
    """Byte-level BPE; its words are Qwen's, in which a full stop takes the line breaks after it along, or GPT-2's."""
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=gpt2_words)
    words = [] if gpt2_words else [pre_tokenizers.Split(WORDS, "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    if trim_offsets:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=[*special], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(LINES * 3, trainer)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    return tokenizer


def _metaspace(special: Sequence[str], *, added: Sequence[str]) -> Tokenizer:
    """BPE over text with ▁ for a space and bytes for unknown characters, in the way of SentencePiece."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=[*special, *fallback], show_progress=False)
    tokenizer.train_from_iterator(LINES * 3, trainer)
    # The trainer made the bytes special; they are ordinary tokens of the model.
    state = tokenizer.to_str()
    tokenizer = Tokenizer.from_str(_without_added(state, fallback))
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    return tokenizer


def _without_added(state: str, contents: Sequence[str]) -> str:
    parsed = json.loads(state)
    parsed["added_tokens"] = [token for token in parsed["added_tokens"] if token["content"] not in contents]
    return json.dumps(parsed)


def _characters(special: Sequence[str]) -> Tokenizer:
    """One token for each character of ASCII, `<unk>` for any other."""
    vocabulary = [*special, *map(chr, range(128))]
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(vocabulary)}, [], unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def _with_bos(tokenizer: Tokenizer, bos: str) -> Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    return tokenizer


def wrap(tokenizer: Tokenizer, template: str | None, **names: str) -> PreTrainedTokenizerFast:
    """A tokenizer of transformers around one of `tokenizers`."""
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    wrapped.chat_template = template
    return wrapped


def small(name: str) -> PreTrainedTokenizerFast:
    """A new small tokenizer."""
    match name:
        case "qwen3":
            added = ["<think>", "</think>", "<tool_response>", "</tool_response>"]
            tokenizer = _byte_level(CHATML, added=added, normalizer=normalizers.NFC())
            return wrap(tokenizer, QWEN3, eos_token="<|im_end|>", pad_token="<|endoftext|>")
        case "qwen2_5":
            tokenizer = _byte_level(CHATML, normalizer=normalizers.NFC())
            return wrap(tokenizer, QWEN2_5, eos_token="<|im_end|>", pad_token="<|endoftext|>")
        case "llama3":
            special = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
            tokenizer = _with_bos(_byte_level(special), "<|begin_of_text|>")
            return wrap(tokenizer, LLAMA3, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>")
        case "mistral":
            tokenizer = _with_bos(_byte_level(["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]), "<s>")
            return wrap(tokenizer, MISTRAL, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
        case "gemma":
            special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
            tokenizer = _with_bos(_metaspace(special, added=["\n", "\n\n", "\n\n\n", "<b>", "</b>"]), "<bos>")
            return wrap(tokenizer, GEMMA, bos_token="<bos>", eos_token="<end_of_turn>", unk_token="<unk>")
        case "smollm2":
            tokenizer = _byte_level(CHATML, gpt2_words=True)
            return wrap(tokenizer, SMOLLM2, bos_token="<|im_start|>", eos_token="<|im_end|>", unk_token="<|endoftext|>")
        case "text_only":
            return wrap(_byte_level(["<|endoftext|>"], trim_offsets=True), TEXT_ONLY, eos_token="<|endoftext|>")
        case "plain":
            return wrap(_byte_level(["<|endoftext|>"], gpt2_words=True), None, eos_token="<|endoftext|>")
        case "plain_bos":
            tokenizer = _with_bos(_characters(["<unk>", "<s>", "</s>"]), "<s>")
            return wrap(tokenizer, None, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
        case _:
            raise ValueError(name)


@cache
def _real_folder() -> Path | None:
    if folder := os.environ.get("OPASD_TOKENIZERS"):
        return Path(folder)
    archive = Path(__file__).resolve().parents[2] / "shared" / "tokenizers.tar.gz"
    if not archive.is_file():
        return None
    extracted = tempfile.TemporaryDirectory()
    atexit.register(extracted.cleanup)
    with tarfile.open(archive) as tar:
        tar.extractall(extracted.name, filter="data")
    return Path(extracted.name) / "tokenizers"


@cache
def load(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer `name`, one of `ALL`, shared between tests; a real one that is not there skips the test."""
    if not name.startswith("real/"):
        return small(name)
    folder = _real_folder()
    path = folder and folder / name.split("/")[1]
    if path is None or not path.is_dir():
        pytest.skip(f"{name} is not there; set OPASD_TOKENIZERS to a folder of tokenizers")
    tokenizer = AutoTokenizer.from_pretrained(path)
    if name.endswith("/plain"):
        tokenizer.chat_template = None
    return tokenizer


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of a context, control tokens and all."""
    text = tokenizer.decode(list(ids))
    assert isinstance(text, str)
    return text


def own_ids(tokenizer: PreTrainedTokenizerBase, message: str, thinking: bool, system: str | None = None) -> list[int]:
    """The context as a user of transformers would make it."""
    if tokenizer.chat_template is None:
        bos = "<s>" if tokenizer.bos_token == "<s>" else ""
        return tokenizer(bos + message + "\n", add_special_tokens=False)["input_ids"]
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": message})
    ids = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, enable_thinking=thinking, return_dict=False
    )
    return [token for token in ids if isinstance(token, int)]
