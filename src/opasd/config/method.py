"""The method: prompts, sampling, teacher and validation, and the objective."""

import string
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from pydantic import Field, field_validator, model_validator

from opasd.choices import (
    ENGINES,
    CutPolicy,
    Engine,
    Imitation,
    LayoutChoice,
    Precision,
    RolloutSource,
    StopOrSkip,
    TeacherUpdate,
)
from opasd.config.objective import ObjectiveConfig, Section
from opasd.errors import without_secrets

REFERENCE_FIELDS = frozenset({"solution", "answer", "pointers"})
"""What `prompts.reference` may show of a problem."""


MANY = 10**6
"""More tokens, samples or rows than anything here can use: a slip of the finger."""


class PromptConfig(Section):
    """The wording of the two roles. A context is the model's own chat template around one user message."""

    student: str = "Problem: {question}\n\n{instruction}"
    """The student's message. Fields: {question}, {instruction}."""
    teacher: str = "Problem: {question}\n\n{reference}{instruction}"
    """The teacher's message. Fields: {question}, {reference}, {instruction}."""
    reference: str = (
        "Here is a reference solution to this problem:\n"
        "=== Reference Solution Begin ===\n{solution}\n=== Reference Solution End ===\n\n"
        "Read the reference solution until every step of it is clear to you, without copying its wording. "
        "Then work the problem out again by reasoning of your own, up to the same final answer.\n"
    )
    """The block that only the teacher sees: markers, {solution} and the transition to its own reasoning. Fields:
    {solution}, {answer}, {pointers} or several of them."""
    attention_reference: str | None = None
    """A reference for the attention loss alone, such as one that says where to look and not what to say. Fields as in
    `reference`. The teacher then reads each rollout twice. Unset: both losses use `reference`."""
    instruction: str = "Please reason step by step, and put your final answer within \\boxed{}."
    """The instruction at the end of both messages. Braces in it are plain text."""
    system: str | None = None
    """System prompt of both roles. Unset: the chat template's default."""
    student_thinking: bool = False
    """Thinking mode of the student's context, if the chat template has a switch for it."""
    teacher_thinking: bool = True
    """Thinking mode of the teacher's context, if the chat template has a switch for it."""
    template_options: dict[str, str | int | bool] = Field(default={})
    """More variables for the chat template of both roles, such as `date_string` for Llama 3."""
    max_student_tokens: int = Field(default=2048, gt=0, le=MANY)
    """Longest student context before the rollout. A longer problem is not cut: its row is bad."""
    max_teacher_tokens: int = Field(default=16_384, gt=0, le=MANY)
    """Longest teacher context before the rollout. Only the solution is cut to fit."""
    cut_solution: CutPolicy = "tail"
    """Part of a too long solution that is cut away (`tail`, `head` or `middle`), or `skip` the row."""
    imitation: Imitation = "neutralise"
    """Chat template control tokens inside a problem or solution: make them plain text, or refuse the row."""

    @field_validator(
        "student", "teacher", "reference", "attention_reference", "instruction", "system", "template_options"
    )
    @classmethod
    def _readable(cls, value: Any) -> Any:
        texts = value.values() if isinstance(value, dict) else (value,)
        if any("\ud800" <= letter <= "\udfff" for text in texts if isinstance(text, str) for letter in text):
            raise ValueError("holds half a surrogate pair, which no tokenizer reads; write the whole character")
        return value

    def references(self) -> dict[str, str]:
        """Return the wordings of the reference by their keys: one for both losses, or one for each."""
        own = {} if self.attention_reference is None else {"attention_reference": self.attention_reference}
        return {"reference": self.reference} | own

    def reference_fields(self) -> frozenset[str]:
        """Return which of their fields the references show."""
        return frozenset[str]().union(*map(shown_fields, self.references().values()))


def shown_fields(reference: str) -> frozenset[str]:
    """Return which of its fields a reference shows; {solution} if it has none or is no valid format string."""
    try:
        fields = {name for _, name, _, _ in string.Formatter().parse(reference)}
    except ValueError:
        fields = set()
    return frozenset(REFERENCE_FIELDS & fields) or frozenset({"solution"})


class SamplingConfig(Section):
    """How tokens are sampled."""

    temperature: float = Field(default=1.1, ge=0, allow_inf_nan=False)
    """Sampling temperature; 0 takes the likeliest token."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """Keep the likeliest tokens that together have this probability."""
    top_k: int = Field(default=20, ge=0)
    """Keep this many of the likeliest tokens; 0 keeps all."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Drop tokens less likely than this share of the likeliest token's probability."""
    max_new_tokens: int = Field(default=8192, gt=0, le=MANY)
    """Longest completion."""


class VLLMConfig(Section):
    """vLLM in the training process, on the training device."""

    memory_share: float = Field(default=0.3, gt=0, le=1)
    """Share of the device's memory for vLLM's weights and cache; on a CPU, of the machine's memory."""
    cache_bytes: int | None = Field(default=None, gt=0)
    """Size of the cache in bytes. Unset: the memory share minus the weights."""
    sleep: bool = True
    """Free the memory between rollouts if the device can: weights move to the host, the cache is dropped."""
    dtype: Precision = "auto"
    """Number format of vLLM's weights; `auto` is the training model's."""
    eager: bool = False
    """Run without CUDA graphs: starts sooner, samples more slowly."""
    tensor_parallel: int = Field(default=1, gt=0, le=1024)
    """Training processes that share one copy of vLLM's weights, for a base that does not fit one GPU beside the
    trainer. It divides the number of processes; those that share are neighbours, on one machine if they can be."""

    def obstacle(self, processes: int) -> str:
        """Return why so many processes cannot share vLLM's weights as the setting says, or nothing."""
        if processes % self.tensor_parallel == 0:
            return ""
        return (
            f"rollout.vllm.tensor_parallel: got {self.tensor_parallel}, which does not divide the number of processes, "
            f"{processes}; start {self.tensor_parallel} or a multiple of it with --num-processes, or set it to 1"
        )


_KEYS = "set VLLM_API_KEY, or OPENAI_API_KEY for --judge and --engine openai"


def check_address(url: str) -> None:
    """Refuse what is no server's address, and one that holds a secret: addresses are kept in folders and pages."""
    shown = without_secrets(url)
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:  # it is too large, or no number
        reason = str(error).partition(" as ")[0]  # behind it stands what may be a password
        reason = reason if reason.startswith("Port") else "no host can be read"  # the others quote it
        raise ValueError(f"got {shown!r:.80} ({reason}); give addresses such as http://localhost:8000") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"got {shown!r:.80}; give addresses such as http://localhost:8000")
    if parts.username is not None or parts.password is not None or "@" in unquote(url):
        raise ValueError(f"a name or password in an address would be kept in files; {_KEYS}")
    if parts.query or parts.fragment or ";" in url:
        raise ValueError(f"a key behind ?, ; or # in an address would be kept in files; {_KEYS}")


class ServersConfig(Section):
    """vLLM servers, on this or other machines; each is used by one run at a time."""

    urls: tuple[str, ...] = ()
    """Addresses such as http://localhost:8000."""
    adapter_dir: str | None = None
    """Folder for the student's adapters that this process and all servers see under the same path. Unset: memory of
    this machine, which suits servers on this machine."""
    timeout: float = Field(default=1200, gt=0, allow_inf_nan=False)
    """Seconds to wait for a whole completion; processes that train together wait 1,800 for one another."""
    probe_timeout: float = Field(default=30, gt=0, allow_inf_nan=False)
    """Seconds to wait for a connection, a sign of life, or an adapter to be loaded."""
    retries: int = Field(default=5, ge=0)
    """How often a failed completion, or a server that does not answer, is tried again."""
    backoff: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Seconds before a failed server is tried again; doubled each time."""
    max_backoff: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """Longest pause between two tries."""

    @field_validator("urls")
    @classmethod
    def _addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            check_address(url)
        if len({url.rstrip("/") for url in urls}) < len(urls):
            raise ValueError("got the same address twice; give each server once")
        return urls


class DriftConfig(Section):
    """A check that vLLM uses the student's weights: both must give sampled tokens the same log-probabilities."""

    every: int = Field(default=10, ge=0)
    """Steps between checks, starting with the first step; 0 never checks."""
    rollouts: int = Field(default=4, gt=0, le=MANY)
    """Number of rollouts to compare."""
    tokens: int = Field(default=64, gt=0, le=MANY)
    """Number of first tokens of each rollout to compare."""
    tolerance: float | None = Field(default=None, gt=0)
    """Stop when the mean difference is larger. Unset: 0.001 in float32, 0.05 in 16-bit formats."""


class RolloutConfig(SamplingConfig):
    """How the student samples its trajectories."""

    engine: Engine = "transformers"
    """Engine that samples."""
    source: RolloutSource = "student"
    """What both roles read: the student's own samples, or the problem's verified `solution` in their place. The latter,
    with `objective.terms: {likelihood: 1}` and no other loss, is supervised fine-tuning on the solutions."""
    max_model_len: int | None = Field(default=None, gt=1)
    """Longest sequence of a vLLM engine. Unset: the longest prompt plus completion, within the model's context."""
    vllm: VLLMConfig = VLLMConfig()
    """Settings of `engine: vllm`."""
    servers: ServersConfig = ServersConfig()
    """Settings of `engine: vllm_server`."""
    drift: DriftConfig = DriftConfig()
    """Check of a vLLM engine's weights."""
    rollouts_per_problem: int = Field(default=1, gt=0, le=MANY)
    """Trajectories for each problem of a batch."""
    max_batch: int = Field(default=256, gt=0, le=MANY)
    """Sequences generated side by side."""
    ahead: int = Field(default=0, ge=0, le=1)
    """0: rollouts come from the current weights. 1: servers sample the next step's rollouts while this step updates;
    these come from weights that are one step old."""

    @model_validator(mode="after")
    def _others_sample_ahead(self) -> Self:
        if self.ahead and not ENGINES[self.engine].servers:
            raise ValueError(
                f"ahead: 1 samples while the weights are updated, and engine: {self.engine} uses the same devices; use "
                "engine: vllm_server, or ahead: 0"
            )
        return self

    @model_validator(mode="after")
    def _servers_are_named(self) -> Self:
        if ENGINES[self.engine].servers and not self.servers.urls:
            raise ValueError(f"engine: {self.engine} needs servers.urls, such as [http://localhost:8000]")
        return self


class TeacherConfig(Section):
    """Whose weights judge the student's trajectories."""

    update: TeacherUpdate = "frozen"
    """Initial weights (`frozen`), the student's moving average (`ema`), its own weights (`live`), or `snapshot`s."""
    ema_decay: float = Field(default=0.99, ge=0, lt=1)
    """Share of the old average that each step keeps, for `update: ema`."""
    snapshot_every: int = Field(default=50, gt=0)
    """Steps between copies of the student's weights, for `update: snapshot`."""
    offload: bool = False
    """Keep the teacher's own weights in the host's memory and swap them with the student's while it judges. A GPU then
    holds one role's weights at a time. No value changes. FSDP2 divides them over the GPUs instead."""


class ValidationConfig(Section):
    """Held-out problems that the model answers during training."""

    every: int = Field(default=25, ge=0)
    """Steps between validations; 0 never validates."""
    at_start: bool = False
    """Validate before the first step too."""
    samples: int = Field(default=1, gt=0, le=MANY)
    """Answers per problem: the k of Avg@k."""
    thinking: bool | None = None
    """Thinking mode of the questions. Unset: the student's own."""
    sampling: SamplingConfig = SamplingConfig(temperature=0.6)
    """Sampling of the answers."""
    seed: int = 0
    """Seed of the answers, the same at every validation."""


class OPASDConfig(Section):
    """The method: what `OPASDTrainer` needs beyond `TrainingArguments`."""

    prompts: PromptConfig = PromptConfig()
    """Wording of the two roles."""
    rollout: RolloutConfig = RolloutConfig()
    """Sampling of trajectories."""
    teacher: TeacherConfig = TeacherConfig()
    """Whose weights judge."""
    objective: ObjectiveConfig = ObjectiveConfig()
    """What is learned."""
    validation: ValidationConfig = ValidationConfig()
    """Validation during training."""
    layout: LayoutChoice = "auto"
    """How rollouts share a forward pass: joined in one row (`packed`) or `padded` to one length. `auto` packs on a GPU
    if the model allows it."""
    tokens_per_microbatch: int = Field(default=32_768, gt=0, le=10**9)
    """Most tokens of a forward pass, counted in the teacher's contexts; bounds memory."""
    offload_activations: bool = False
    """Keep what a forward pass saves for its backward pass in the host's memory: longer rollouts fit a GPU. No value
    changes."""
    grader: str = "math"
    """Grader of answers: `math` (the boxed answer), a name that a plugin has registered, or `module:function`."""
    save_samples_every: int = Field(default=10, ge=0)
    """Steps between records of sampled completions; 0 records none."""
    saved_samples: int = Field(default=8, gt=0, le=MANY)
    """Number of completions to record of such a step."""
    on_non_finite: StopOrSkip = "stop"
    """A NaN or infinite loss: save the rollouts that caused it and stop, or skip and count the step."""
