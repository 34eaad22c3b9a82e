"""A whole run: the data, the model, the optimisation and the method."""

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from opasd.choices import Adaptation, Precision, Schedule, StopOrSkip
from opasd.config.method import OPASDConfig
from opasd.config.objective import Section


def _check_group(pattern: str | None) -> str | None:
    try:
        groups = 1 if pattern is None else re.compile(pattern).groups
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"got {pattern!r}, which is no regular expression ({error})") from None
    if groups == 0:
        raise ValueError(f"got {pattern!r}, which has no group; put parentheses around the answer: '####\\s*(.+)'")
    return pattern


AnswerPattern = Annotated[str | None, AfterValidator(_check_group)]
"""Regular expression whose first group extracts the answer."""


class ColumnConfig(Section):
    """Which column of the data holds what."""

    question: str = "problem"
    """Column with the problem's text."""
    solution: str | None = "solution"
    """Column with the verified worked solution. Null: no solutions; enough for evaluation, and for training if
    `prompts.reference` shows only the {answer}."""
    answer: str | None = None
    """Column with the final answer, for grading and for {answer} in `prompts.reference`. Unset: the column `answer` or
    `Answer`, if there is one."""
    answer_pattern: AnswerPattern = None
    """Regular expression whose first group extracts the answer. A text that does not match is the answer itself."""
    pointers: str | None = None
    """Column with what points at the needed parts of the problem, for {pointers} in `prompts.reference`."""


class DataConfig(Section):
    """Where the problems come from and which of them are used."""

    source: str = "siyanzhao/Openthoughts_math_30k_opsd"
    """A data set on the Hugging Face hub, a local folder of the same form, a jsonl, json, parquet or csv file, or a
    task of this package: `lab`, `lookup`, `ledger` or `arithmetic`."""
    revision: str | None = None
    """Commit, tag or branch of a hub data set. Unset: the newest commit; the run records its hash."""
    subset: str | None = None
    """Configuration of a hub data set, if it has several."""
    split: str = "train"
    """Split to read."""
    rows: str | None = None
    """Rows of the split to read, counted from 0: `400:` to train on and `:400` to validate on. Unset: all."""
    columns: ColumnConfig = ColumnConfig()
    """Column mapping."""
    on_bad_row: StopOrSkip = "stop"
    """A row with a missing column, empty or non-string text or a too long solution: stop, or skip and count it."""
    solution_limit: int = Field(default=1_000_000, gt=0)
    """Most characters of a solution, a question or an answer; a row with a longer one is bad."""
    max_question_chars: int | None = Field(default=None, gt=0)
    """Leave out problems with a longer question."""
    max_solution_chars: int | None = Field(default=None, gt=0)
    """Leave out problems with a longer solution."""
    deduplicate: bool = True
    """Keep only the first of several rows with the same question; white space does not count."""
    sample: int | None = Field(default=None, gt=0, le=10**8)
    """Number of problems to draw with `seed`; they keep the order of the source. Unset: all."""
    seed: int = 42
    """Seed of the sample."""

    @field_validator("rows")
    @classmethod
    def _is_a_range(cls, rows: str | None) -> str | None:
        edges = re.fullmatch("([0-9]{0,18}):([0-9]{0,18})", rows or ":")
        if rows == "" or edges is None or (edges[2] and int(edges[1] or 0) >= int(edges[2])):
            raise ValueError(f"got {rows!r:.60}; give FIRST:END counted from 0, such as '400:', ':400' or '400:800'")
        return rows

    @property
    def bounds(self) -> tuple[int, int | None]:
        """Return the first row to read and the one after the last."""
        first, _, end = (self.rows or ":").partition(":")
        return int(first or 0), int(end) if end else None


class ModelConfig(Section):
    """The model, which is both student and teacher."""

    name_or_path: str = "Qwen/Qwen3-1.7B"
    """A model on the Hugging Face hub, a local folder, or `lab` for the small model of this package."""
    revision: str | None = None
    """Commit, tag or branch of a hub model."""
    dtype: Precision = "auto"
    """Number format of the weights."""
    attn_implementation: str | None = None
    """Attention implementation of transformers, such as `sdpa`, `flash_attention_2` or `eager`. Unset: its default."""
    trust_remote_code: bool = False
    """Run model code that comes with a hub model."""
    adaptation: Adaptation = "lora"
    """What is trained: adapters, all weights, or adapters on a 4-bit base (needs bitsandbytes)."""
    lora_r: int = Field(default=64, gt=0, le=2**16)
    """Rank of the adapters."""
    lora_alpha: int = Field(default=128, gt=0)
    """Scaling of the adapters."""
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of the adapters."""
    lora_target_modules: tuple[str, ...] = (
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    )  # fmt: skip
    """Linear layers that get an adapter, given by the ends of their names."""


class TrainConfig(Section):
    """Optimisation: the fields of transformers' `TrainingArguments` that matter here, under the same names."""

    max_steps: int = Field(default=200, gt=0, le=10**9)
    """Optimizer steps."""
    learning_rate: float = Field(default=5e-6, ge=0, allow_inf_nan=False)
    """Learning rate of AdamW."""
    per_device_train_batch_size: int = Field(default=1, gt=0, le=10**6)
    """Problems that each process draws at a time; `tokens_per_microbatch` bounds the memory."""
    gradient_accumulation_steps: int = Field(default=64, gt=0, le=10**6)
    """Draws per optimizer step; problems per step = batch size x accumulation x processes."""
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
    """Mixed precision in bfloat16, for float32 weights."""
    fp16: bool = False
    """Mixed precision in float16, for float32 weights."""
    use_liger_kernel: bool | None = None
    """Use liger-kernel's fused norms, rotary embeddings and activations. Unset: on a GPU, if it is installed."""
    save_steps: int = Field(default=25, gt=0)
    """Steps between checkpoints."""
    save_total_limit: int | None = Field(default=3, gt=0)
    """Number of newest checkpoints to keep. Unset: all."""
    seed: int = Field(default=42, ge=0, lt=2**32)
    """Seed of the data order, the adapters' initial weights and the sampling."""
    report_to: tuple[str, ...] = ()
    """Trackers for the metrics, such as wandb or tensorboard; metrics.jsonl is always written."""
    extra: dict[str, str | int | float | bool] = Field(default={})
    """Any other field of `TrainingArguments`."""

    @field_validator("extra")
    @classmethod
    def _no_secret(cls, extra: dict[str, str | int | float | bool]) -> dict[str, str | int | float | bool]:
        for name in extra:
            if name.endswith("_token"):
                raise ValueError(f"{name}: a secret would be kept in the run's folder and card; set HF_TOKEN instead")
        return extra


class RunConfig(OPASDConfig):
    """A whole run, as `opasd train` reads it from a recipe, a file and the command line."""

    model: ModelConfig = ModelConfig()
    """The model."""
    data: DataConfig = DataConfig()
    """Training problems."""
    validation_data: dict[str, DataConfig] = Field(default={})
    """Named sets of held-out problems to validate on."""
    train: TrainConfig = TrainConfig()
    """Optimisation."""
    output_dir: str = "runs"
    """Folder that gets the run's own folder."""
    name: str | None = None
    """Name of the run's folder. Unset: the recipe's name and the time."""
    record_diff: bool = False
    """Copy the uncommitted changes of the repository that one stands in (git.diff) into the run's folder. They may hold
    secrets."""
    plugins: tuple[str, ...] = ()
    """Python modules to import first: they register divergences, teachers, engines, benchmarks, graders, loss terms."""

    @model_validator(mode="after")
    def _training_needs_solutions(self) -> Self:
        if self.data.columns.solution is None and self.rollout.source == "solution":
            raise ValueError("data.columns.solution is null, but rollout.source: solution learns from them; name it")
        if self.data.columns.solution is None and "solution" in self.prompts.reference_fields():
            raise ValueError(
                "data.columns.solution is null, but the teacher needs solutions; name their column, or show {answer} "
                "alone in prompts.reference"
            )
        return self

    def method(self) -> OPASDConfig:
        """Return the part that `OPASDTrainer` takes."""
        return OPASDConfig(**{name: getattr(self, name) for name in OPASDConfig.model_fields})
