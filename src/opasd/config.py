"""The configuration: every field documented once, here; `--help` and the docs reuse the text. Imports no torch."""

import re
import string
from typing import Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from opasd.choices import (
    Adaptation,
    BadRow,
    Clip,
    CutPolicy,
    Divergence,
    Engine,
    Handling,
    Imitation,
    Impl,
    Layout,
    NonFinite,
    Precision,
    Query,
    Schedule,
    Support,
    TeacherUpdate,
)


class Section(BaseModel):
    """A strict, immutable group of fields; an attribute's docstring is its help text."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True)


class ColumnConfig(Section):
    """Which column of the data holds what."""

    question: str = "problem"
    """Column with the problem's text."""
    solution: str | None = "solution"
    """Column with the verified worked solution. Null: there is none, which is enough for answering, and for training
    with a `prompts.reference` that shows the {answer} alone."""
    answer: str | None = None
    """Column with the final answer, for grading and for {answer} in `prompts.reference`. Unset: the column `answer` (or
    `Answer`) is used if there is one."""
    answer_pattern: str | None = None
    """Regular expression whose first group is the answer in its column; a text without it is the answer itself."""

    @field_validator("answer_pattern")
    @classmethod
    def _has_a_group(cls, pattern: str | None) -> str | None:
        try:
            groups = 1 if pattern is None else re.compile(pattern).groups
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"got {pattern!r}, no regular expression ({error})") from None
        if groups == 0:
            raise ValueError(f"got {pattern!r}, which has no group; put parentheses around the answer: '####\\s*(.+)'")
        return pattern


class DataConfig(Section):
    """Where the problems come from and which of them are used."""

    source: str = "siyanzhao/Openthoughts_math_30k_opsd"
    """A data set on the Hugging Face hub, a local folder of the same form, a jsonl, json, parquet or csv file, or an
    embedded task: `lab` or `arithmetic`."""
    revision: str | None = None
    """Commit, tag or branch of a hub data set. Unset: the newest commit, whose hash is recorded with the run."""
    subset: str | None = None
    """Name of a hub data set's configuration, if it has several."""
    split: str = "train"
    """Split to read."""
    rows: str | None = None
    """Rows of the split to read, counted from 0, such as `400:` to train on and `:400` to validate on. Unset: all."""
    columns: ColumnConfig = ColumnConfig()
    """Column mapping."""
    on_bad_row: BadRow = "stop"
    """A row with a missing column, empty or non-string text or an over-long solution: stop, or skip and count it."""
    solution_limit: int = Field(default=1_000_000, gt=0)
    """A solution of more characters than this is a bad row."""
    max_question_chars: int | None = Field(default=None, gt=0)
    """Leave out problems with a longer question."""
    max_solution_chars: int | None = Field(default=None, gt=0)
    """Leave out problems with a longer solution."""
    deduplicate: bool = True
    """Keep only the first of the rows whose questions are equal up to white space."""
    sample: int | None = Field(default=None, gt=0)
    """Use this many problems, drawn with `seed`, in the order of the source. Unset: all."""
    seed: int = 42
    """Seed of the sample."""

    @field_validator("rows")
    @classmethod
    def _is_a_part(cls, rows: str | None) -> str | None:
        edges = re.fullmatch("([0-9]{0,18}):([0-9]{0,18})", rows or ":")
        if rows == "" or edges is None or (edges[2] and int(edges[1] or 0) >= int(edges[2])):
            raise ValueError(f"got {rows!r:.60}; give FIRST:END counted from 0, such as '400:', ':400' or '400:800'")
        return rows

    @property
    def bounds(self) -> tuple[int, int | None]:
        """The first row to read and the one after the last."""
        first, _, end = (self.rows or ":").partition(":")
        return int(first or 0), int(end) if end else None


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
    """The block only the teacher sees: markers, {solution} and the transition to its own reasoning. Fields: {solution},
    {answer}, one of them or both."""
    instruction: str = "Please reason step by step, and put your final answer within \\boxed{}."
    """The instruction both roles end with. Taken literally."""
    system: str | None = None
    """System prompt of both roles. Unset: whatever the chat template does without one."""
    student_thinking: bool = False
    """Thinking mode of the student's context, where the chat template has a switch for it."""
    teacher_thinking: bool = True
    """Thinking mode of the teacher's context, where the chat template has a switch for it."""
    template_options: dict[str, str | int | bool] = {}
    """Further variables of the chat template, the same for both roles, such as `date_string` of Llama 3."""
    max_student_tokens: int = Field(default=2048, gt=0)
    """Longest student context before the rollout. A problem over it is never cut; its row is bad."""
    max_teacher_tokens: int = Field(default=16_384, gt=0)
    """Longest teacher context before the rollout. Only the solution is ever cut to fit it."""
    cut_solution: CutPolicy = "tail"
    """Which part of a solution that does not fit is cut away (`tail`, `head`, `middle`), or `skip` the row."""
    imitation: Imitation = "neutralise"
    """Control tokens of the chat template inside a problem or solution: make them plain text, or refuse the row."""

    def reference_fields(self) -> frozenset[str]:
        """Which of {solution} and {answer} the reference shows; the solution where it is no wording at all."""
        try:
            found = {name for _, name, _, _ in string.Formatter().parse(self.reference)}
        except ValueError:
            found = set()
        return frozenset({"solution", "answer"} & found) or frozenset({"solution"})


class TokenLossConfig(Section):
    """The token-level loss (OPSD): the student learns the teacher's next-token distribution."""

    divergence: Divergence = "forward_kl"
    """Divergence between the next-token distributions, teacher first."""
    jsd_beta: float = Field(default=0.5, gt=0, lt=1)
    """Weight of the teacher in the mixture of the Jensen-Shannon divergence."""
    temperature: float = Field(default=1.1, gt=0, allow_inf_nan=False)
    """Temperature of both distributions in the loss; the sampling temperature is another setting."""
    clip: Clip = "per_token"
    """Clip each token's divergence, each vocabulary entry's contribution to it, or nothing."""
    clip_threshold: float = Field(default=0.05, gt=0, allow_inf_nan=False)
    """Threshold of the clipping."""
    top_k: int | None = Field(default=None, gt=0)
    """Compare the teacher's k likeliest tokens one by one and all others as one. Unset: the full vocabulary."""
    impl: Impl = "auto"
    """Implementation."""
    chunk_tokens: int | None = Field(default=None, gt=0)
    """Tokens whose logits are held at a time. Unset: as many as fit a fixed workspace."""


class AttentionLossConfig(Section):
    """The attention-level loss (OPASD): the student learns where the teacher looks."""

    divergence: Divergence = "jsd"
    """Divergence between the attention rows, teacher first."""
    jsd_beta: float = Field(default=0.5, gt=0, lt=1)
    """Weight of the teacher in the mixture of the Jensen-Shannon divergence."""
    layers: int = Field(default=1, gt=0)
    """How many of the last attention layers are compared; their losses are averaged."""
    handling: Handling = "project"
    """What becomes of the teacher's attention on the solution."""
    support: Support = "context"
    """Which shared positions are compared."""
    query: Query = "predicting"
    """Whose attention row belongs to a step: the position that predicts its token, or the token's own."""
    shuffle_seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of the permutation that `handling: shuffle` uses."""
    impl: Impl = "auto"
    """Implementation."""
    chunk_queries: int = Field(default=128, gt=0)
    """Query rows whose attention is held at a time."""

    @model_validator(mode="after")
    def _redistribution_needs_the_prompt(self) -> Self:
        if self.handling != "project" and self.support == "response":
            raise ValueError(
                f"handling: {self.handling} gives the solution's attention to shared prompt positions, "
                "but support: response leaves none; use support: context or problem, or handling: project"
            )
        return self


class ObjectiveConfig(Section):
    """λ_tok · token loss + λ_attn · attention loss, averaged over a rollout's tokens, then over rollouts."""

    token_weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of the token loss; 0 trains on attention alone."""
    attention_weight: float = Field(default=0.5, ge=0, allow_inf_nan=False)
    """Weight of the attention loss; 0 is OPSD."""
    token: TokenLossConfig = TokenLossConfig()
    """Token loss."""
    attention: AttentionLossConfig = AttentionLossConfig()
    """Attention loss."""

    @model_validator(mode="after")
    def _something_to_learn(self) -> Self:
        if self.token_weight == 0 and self.attention_weight == 0:
            raise ValueError("token_weight and attention_weight are both 0: nothing to learn; set one of them above 0")
        return self


class SamplingConfig(Section):
    """How tokens are drawn."""

    temperature: float = Field(default=1.1, ge=0, allow_inf_nan=False)
    """Sampling temperature; 0 takes the likeliest token."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """Keep the likeliest tokens that together have this probability."""
    top_k: int = Field(default=20, ge=0)
    """Keep this many of the likeliest tokens; 0 keeps all."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Drop tokens with less than this share of the likeliest one's probability."""
    max_new_tokens: int = Field(default=8192, gt=0)
    """Longest completion."""


class VLLMConfig(Section):
    """vLLM in the training process, on the training device."""

    memory_share: float = Field(default=0.3, gt=0, le=1)
    """Share of the device's memory for its weights and cache; on a CPU, of the machine's."""
    cache_bytes: int | None = Field(default=None, gt=0)
    """Size of the cache. Unset: what the memory share leaves beside the weights."""
    sleep: bool = True
    """Give the memory back between rollouts, where the device can: weights move to the host, the cache is dropped."""
    dtype: Precision = "auto"
    """Number format of its weights; `auto` is the training model's."""
    eager: bool = False
    """Run without CUDA graphs: starts sooner, samples more slowly."""


class ServersConfig(Section):
    """vLLM servers, on this or other machines; each is used by one run at a time."""

    urls: tuple[str, ...] = ()
    """Addresses, such as http://localhost:8000."""
    adapter_dir: str | None = None
    """Folder for the student's adapters that this process and all servers see under the same path. Unset: memory of
    this machine, for servers on it."""
    timeout: float = Field(default=1800, gt=0, allow_inf_nan=False)
    """Seconds to wait for a completion."""
    probe_timeout: float = Field(default=30, gt=0, allow_inf_nan=False)
    """Seconds to wait for a connection, a sign of life, or an adapter to be loaded."""
    retries: int = Field(default=5, ge=0)
    """How often a completion, or a server that does not answer, is tried again."""
    backoff: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Seconds before a server that failed is tried again; doubled each time."""
    max_backoff: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """Longest pause between two tries."""

    @field_validator("urls")
    @classmethod
    def _addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"got {url!r}; give addresses such as http://localhost:8000")
            if parts.username is not None or parts.password is not None:
                raise ValueError("a name or password in an address would be kept in the run's folder; set VLLM_API_KEY")
        if len({url.rstrip("/") for url in urls}) < len(urls):
            raise ValueError("the same address twice; give each server once")
        return urls


class DriftConfig(Section):
    """A check that vLLM answers with the student's weights: log-probabilities of sampled tokens, its and ours."""

    every: int = Field(default=10, ge=0)
    """Steps between checks, the first step among them; 0 never checks."""
    rollouts: int = Field(default=4, gt=0)
    """Rollouts that are compared."""
    tokens: int = Field(default=64, gt=0)
    """First tokens of each that are compared."""
    tolerance: float | None = Field(default=None, gt=0)
    """Stop when the mean difference is larger. Unset: 0.001 in float32, 0.05 in formats of 16 bits."""


class RolloutConfig(SamplingConfig):
    """How the student samples its trajectories."""

    engine: Engine = "transformers"
    """Engine that samples."""
    max_model_len: int | None = Field(default=None, gt=1)
    """Longest sequence of a vLLM engine. Unset: the longest prompt and completion, within the model's context."""
    vllm: VLLMConfig = VLLMConfig()
    """Settings of `engine: vllm`."""
    servers: ServersConfig = ServersConfig()
    """Settings of `engine: vllm_server`."""
    drift: DriftConfig = DriftConfig()
    """Check of a vLLM engine's weights."""
    rollouts_per_problem: int = Field(default=1, gt=0)
    """Trajectories for each problem of a batch."""
    max_batch: int = Field(default=256, gt=0)
    """Sequences generated side by side."""

    @model_validator(mode="after")
    def _servers_are_named(self) -> Self:
        if self.engine == "vllm_server" and not self.servers.urls:
            raise ValueError("engine: vllm_server needs servers.urls, such as [http://localhost:8000]")
        return self


class TeacherConfig(Section):
    """Whose weights judge the student's trajectories."""

    update: TeacherUpdate = "frozen"
    """Initial weights throughout (`frozen`), moving average (`ema`), the student's own (`live`), or `snapshot`s."""
    ema_decay: float = Field(default=0.99, ge=0, lt=1)
    """Share of the old average kept at each step, for `update: ema`."""
    snapshot_every: int = Field(default=50, gt=0)
    """Steps between copies of the student's weights, for `update: snapshot`."""


class ValidationConfig(Section):
    """Held-out problems answered during training with the same sampler."""

    every: int = Field(default=25, ge=0)
    """Steps between validations; 0 never validates."""
    at_start: bool = False
    """Validate before the first step too."""
    samples: int = Field(default=1, gt=0)
    """Answers for each problem: k of Avg@k."""
    thinking: bool | None = None
    """Thinking mode of the questions. Unset: the student's own."""
    sampling: SamplingConfig = SamplingConfig(temperature=0.6)
    """Sampling of the answers."""
    seed: int = 0
    """Seed of the answers: the same at every validation."""


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
    layout: Layout = "auto"
    """How rollouts share a forward: one after another in a row (`packed`) or `padded` to one length. `auto` packs on a
    GPU wherever the model allows it."""
    tokens_per_microbatch: int = Field(default=32_768, gt=0)
    """Rollouts share a forward up to this many tokens, counted on the teacher's contexts; bounds memory."""
    save_samples_every: int = Field(default=10, ge=0)
    """Steps between records of sampled completions; 0 keeps none."""
    saved_samples: int = Field(default=8, gt=0)
    """Completions of a step that are recorded."""
    on_non_finite: NonFinite = "stop"
    """A NaN or infinite loss: stop with the offending rollouts saved, or skip the step and count it."""


class ModelConfig(Section):
    """The model, which is student and teacher at once."""

    name_or_path: str = "Qwen/Qwen3-1.7B"
    """A model on the Hugging Face hub, a local folder, or `lab` for the embedded one."""
    revision: str | None = None
    """Commit, tag or branch of a hub model."""
    dtype: Precision = "auto"
    """Number format of the weights."""
    attn_implementation: str | None = None
    """Attention implementation of transformers, such as `sdpa`, `flash_attention_2` or `eager`. Unset: its choice."""
    trust_remote_code: bool = False
    """Run model code that comes with a hub model."""
    adaptation: Adaptation = "lora"
    """What is trained: adapters, all weights, or adapters on a 4-bit base (needs bitsandbytes)."""
    lora_r: int = Field(default=64, gt=0)
    """Rank of the adapters."""
    lora_alpha: int = Field(default=128, gt=0)
    """Scaling of the adapters."""
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of the adapters."""
    lora_target_modules: tuple[str, ...] = (
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    )  # fmt: skip
    """Linear layers that get an adapter, by the end of their name."""


class TrainConfig(Section):
    """Optimisation: the fields of transformers' `TrainingArguments` that matter here, under the same names."""

    max_steps: int = Field(default=200, gt=0)
    """Optimizer steps."""
    learning_rate: float = Field(default=5e-6, ge=0, allow_inf_nan=False)
    """Learning rate of AdamW."""
    per_device_train_batch_size: int = Field(default=1, gt=0)
    """Problems drawn at a time on each process; memory is bounded by `tokens_per_microbatch`."""
    gradient_accumulation_steps: int = Field(default=64, gt=0)
    """Draws of an optimizer step; problems per step = batch size x accumulation x processes."""
    lr_scheduler_type: Schedule = "constant"
    """Schedule of the learning rate."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises from 0."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight decay of AdamW."""
    max_grad_norm: float = Field(default=1.0, ge=0)
    """Largest gradient norm; 0 clips nothing."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass to save memory."""
    bf16: bool = False
    """Mixed precision in bfloat16, for weights kept in float32."""
    fp16: bool = False
    """Mixed precision in float16, for weights kept in float32."""
    use_liger_kernel: bool | None = None
    """Fused norms, rotary embeddings and activations of liger-kernel. Unset: on a GPU, where it is installed."""
    save_steps: int = Field(default=25, gt=0)
    """Steps between checkpoints."""
    save_total_limit: int | None = Field(default=3, gt=0)
    """Checkpoints kept, newest first. Unset: all."""
    seed: int = Field(default=42, ge=0, lt=2**32)
    """Seed of data order, adapters' initial weights and sampling."""
    report_to: tuple[str, ...] = ()
    """Trackers that get the metrics, such as wandb or tensorboard; metrics.jsonl always does."""
    extra: dict[str, str | int | float | bool] = {}
    """Any other field of `TrainingArguments`."""


class RunConfig(OPASDConfig):
    """Everything of a run: what `opasd train` reads from a recipe, a file and the command line."""

    model: ModelConfig = ModelConfig()
    """The model."""
    data: DataConfig = DataConfig()
    """Training problems."""
    validation_data: dict[str, DataConfig] = {}
    """Named sets of held-out problems to validate on."""
    train: TrainConfig = TrainConfig()
    """Optimisation."""
    output_dir: str = "runs"
    """Folder in which the run's own folder is made."""
    name: str | None = None
    """Name of the run's folder. Unset: the recipe's name and the time."""

    @model_validator(mode="after")
    def _training_needs_solutions(self) -> Self:
        if self.data.columns.solution is None and "solution" in self.prompts.reference_fields():
            raise ValueError(
                "data.columns.solution is null: the teacher needs solutions; name their column, or show it {answer} "
                "alone in prompts.reference"
            )
        return self

    def method(self) -> OPASDConfig:
        """The part that `OPASDTrainer` takes."""
        return OPASDConfig(**{name: getattr(self, name) for name in OPASDConfig.model_fields})
