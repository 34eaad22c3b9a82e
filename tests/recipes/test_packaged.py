"""The recipes that come with the package: the paper's settings, the paper's numbers, and nothing said twice."""

import functools
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opasd.cli._preview import arithmetic
from opasd.cli.train import parser
from opasd.config import DataConfig, RunConfig
from opasd.data.problems import Problem, load_problems
from opasd.data.sets import load_set
from opasd.evaluation.benchmarks import find_benchmarks, load
from opasd.recipes import GROUPS, Recipe, load_recipe, recipe_names
from opasd.recipes.evaluate import to_evaluate
from opasd.recipes.reading import parse_yaml, read_yaml

PAPER = Path(__file__).parents[3] / "shared" / "paper.tex"
FACTS = Path(__file__).parents[2] / "src" / "opasd" / "report" / "facts" / "paper.yaml"
RECIPES = {name: load_recipe(name) for name in recipe_names()}
PUBLISHED = [name for name, recipe in RECIPES.items() if recipe.group == "paper"]
OPEN = [name for name, recipe in RECIPES.items() if recipe.group == "open"]
LABELS = {
    "main-results": "main_results", "attention-divergence": "divergence_comparison",
    "attention-weight": "lambda_attn_ablation", "attention-layers": "attention_layers",
    "seeds": "random_seed_robustness", "solution-attention": "gt_attention_handling",
    "token-clipping": "clipping_comparison", "objectives": "objective_components",
    "matched-clipping": "matched_attention_ablation",
}  # fmt: skip
"""Our names of the paper's tables, and its own."""


def objective(recipe: Recipe) -> tuple[Any, ...]:
    """Everything in which experiments of the paper differ."""
    config = recipe.config()
    objective, attention = config.objective, config.objective.attention
    return (
        config.model.name_or_path, config.train.seed, objective.token_weight, objective.attention_weight,
        objective.token.clip, attention.divergence, attention.layers, attention.handling,
    )  # fmt: skip


SMALL = "Qwen/Qwen3-1.7B"
OPASD = (SMALL, 42, 1.0, 0.5, "per_token", "jsd", 1, "project")
FIELDS = ("model", "seed", "token_weight", "attention_weight", "clip", "divergence", "layers", "handling")
EXPERIMENTS: dict[str, dict[str, Any]] = {
    **{f"opasd-qwen3-{s}": {"model": f"Qwen/Qwen3-{s.upper()}"} for s in ("1.7b", "4b", "8b")},
    **{f"base-qwen3-{s}": {"model": f"Qwen/Qwen3-{s.upper()}"} for s in ("1.7b", "4b", "8b")},
    **{
        f"opsd-qwen3-{s}": {"model": f"Qwen/Qwen3-{s.upper()}", "attention_weight": 0.0, "clip": "pointwise"}
        for s in ("1.7b", "4b", "8b")
    },
    "divergence-forward-kl": {"attention_weight": 1.0, "divergence": "forward_kl"},
    "divergence-reverse-kl": {"attention_weight": 1.0, "divergence": "reverse_kl"},
    "divergence-jsd": {"attention_weight": 1.0},
    **{f"lambda-{weight:g}": {"attention_weight": weight} for weight in (0.25, 0.5, 1.0, 2.0)},
    **{f"layers-{count}": {"layers": count} for count in (1, 2, 3)},
    **{f"handling-{handling}": {"handling": handling} for handling in ("project", "redistribute", "shuffle")},
    "clipping-none": {"attention_weight": 1.0, "clip": "none"},
    "clipping-pointwise": {"attention_weight": 1.0, "clip": "pointwise"},
    "clipping-per-token": {"attention_weight": 1.0},
    "objective-token": {"attention_weight": 0.0, "clip": "pointwise"},
    "objective-attention": {"token_weight": 0.0},
    "objective-both": {},
    "matched-opsd-pointwise": {"attention_weight": 0.0, "clip": "pointwise"},
    "matched-opsd-per-token": {"attention_weight": 0.0},
    "matched-opasd-per-token": {},
    **{f"seed-{seed}": {"model": "Qwen/Qwen3-4B", "seed": seed} for seed in (1, 42, 123)},
    "budgets-opsd": {"model": "Qwen/Qwen3-4B", "attention_weight": 0.0, "clip": "pointwise"},
    "budgets-opasd": {"model": "Qwen/Qwen3-4B"},
}


def test_there_is_a_recipe_for_each_experiment_of_the_paper() -> None:
    assert set(PUBLISHED) == set(EXPERIMENTS)
    for name, differing in EXPERIMENTS.items():
        expected = tuple(differing.get(field, value) for field, value in zip(FIELDS, OPASD, strict=True))
        assert objective(RECIPES[name]) == expected, name
        assert RECIPES[name].evaluate_only == name.startswith("base-")


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_parses_and_describes_itself(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.description.endswith(".")
    assert "\n" not in recipe.description
    assert recipe.group in GROUPS
    assert isinstance(recipe.config(), RunConfig)
    assert recipe.evaluate is not None
    assert bool(recipe.expects) == (recipe.group == "paper")


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_holds_only_what_differs_from_its_parent(name: str) -> None:
    recipe = RECIPES[name]
    own = parse_yaml(recipe.text, name)
    for key in ("extends", "description", "expects", "evaluate", "evaluate_only"):
        own.pop(key, None)
    if recipe.parents:
        parent = load_recipe(recipe.parents[0]).config().model_dump()
        for path, value in _leaves(own):
            below: Any = parent
            for key in path:
                below = below.get(key) if isinstance(below, dict) else None
            assert below != value, f"{'.'.join(path)} is the parent's"
        assert len(recipe.text.splitlines()) <= 16


@pytest.mark.parametrize("name", PUBLISHED + OPEN)
def test_the_papers_hyperparameters_hold_for_any_number_of_processes(name: str) -> None:
    config = RECIPES[name].config()
    train, rollout, objective = config.train, config.rollout, config.objective
    assert arithmetic(config, 1)["problems_per_step"] == 64
    for processes in (1, 2, 4, 8):
        accumulation, rest = divmod(train.gradient_accumulation_steps, processes)
        divided = config.model_copy(
            update={"train": train.model_copy(update={"gradient_accumulation_steps": accumulation})}
        )
        batch = arithmetic(divided, processes)
        assert (rest, batch["problems_per_step"], batch["total_rollouts"]) == (0, 64, 12_800)
    batch = arithmetic(config, 1)
    assert (batch["steps"], batch["validations"], batch["longest_student_sequence"]) == (200, 8, 10_240)
    assert (train.learning_rate, train.lr_scheduler_type) == (5e-6, "constant")
    assert (rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_new_tokens) == (1.1, 0.95, 20, 8192)
    assert (objective.token.divergence, objective.token.temperature, objective.token.clip_threshold) == (
        "forward_kl", 1.1, 0.05,
    )  # fmt: skip
    assert (config.model.lora_r, config.model.lora_alpha, config.data.source) == (
        64, 128, "siyanzhao/Openthoughts_math_30k_opsd",
    )  # fmt: skip
    assert (config.prompts.student_thinking, config.prompts.teacher_thinking) == (False, True)
    assert config.teacher.update == (name.partition("-")[2] if name.startswith("teacher-") else "frozen")
    evaluation = to_evaluate(RECIPES[name].evaluate or {}, name)
    assert evaluation.benchmarks == ("aime24", "aime25", "aime26", "hmmt25")
    assert evaluation.profile == "paper"
    assert evaluation.budgets == ((16_384, 28_672, 38_912) if name.startswith("budgets-") else ())


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("lab")])
def test_the_lab_is_small(name: str) -> None:
    config = RECIPES[name].config()
    batch = arithmetic(config, 1)
    assert batch["problems_per_step"] == 32
    assert batch["steps"] <= (20 if "short" in name else 40)
    assert (config.model.name_or_path, config.data.source) == ("lab", "lab")


def test_what_is_known_to_work_is_named_so_and_is_not_the_papers() -> None:
    known = [name for name, recipe in RECIPES.items() if recipe.group == "start"]
    assert known == [name for name in RECIPES if name.startswith("start-")]
    for name in known:
        config = RECIPES[name].config()
        assert "not the paper's" in RECIPES[name].description
        assert config.objective.token.clip != "pointwise"
        assert config.teacher.update == "frozen"
        if "qwen3" in name:
            assert (config.objective.token.divergence, config.objective.token.clip) == ("reverse_kl", "none")
            assert (config.train.learning_rate, config.train.max_steps) == (5e-5, 40)
    assert RECIPES["start-pointers-qwen3-1.7b"].config().prompts.reference_fields() == {"pointers"}


SMALL = [name for name, recipe in RECIPES.items() if recipe.group == "small"]


@pytest.mark.parametrize("name", SMALL)
def test_small_recipes_have_the_same_batch(name: str) -> None:
    assert arithmetic(RECIPES[name].config(), 1)["problems_per_step"] == 64


@pytest.mark.parametrize("name", [name for name in SMALL if name.startswith(("arithmetic", "ledger"))])
def test_problems_made_by_code_are_trained_validated_and_evaluated_on_different_problems(name: str) -> None:
    config, evaluation = RECIPES[name].config(), to_evaluate(RECIPES[name].evaluate or {}, name)
    (held,) = config.validation_data.values()
    parts = [_made(data.model_dump_json(), split) for data, split in ((config.data, "train"), (held, "validation"))]
    parts.append(_tested(*evaluation.benchmarks))
    assert [len(part) for part in parts] == [4096, 400, 1000]
    assert len(set(itertools.chain(*parts))) == 5496


@functools.cache
def _made(data: str, split: str) -> list[str]:
    """Return the questions of a set: recipes share them, and making them takes seconds."""
    return [problem.question for problem in load_set(DataConfig.model_validate_json(data), split)]


@functools.cache
def _tested(name: str) -> list[str]:
    (benchmark,) = find_benchmarks([name])
    return [problem.question for problem in load(benchmark).problems]


@pytest.mark.parametrize("name", [name for name in SMALL if name.startswith("gsm8k")])
def test_small_recipes_hold_problems_out_to_choose_settings_by(name: str) -> None:
    config = RECIPES[name].config()
    held = config.validation_data["gsm8k"]
    assert (held.rows, config.data.rows) == (":400", "400:")
    assert held.model_copy(update={"rows": config.data.rows}) == config.data
    rows = [{"question": "q", "answer": "48/2 = 24\n48+24 = 72\n#### 72"}]
    problems = load_problems(rows, config.data.model_copy(update={"rows": None}))
    assert list(problems) == [Problem("q", "48/2 = 24\n48+24 = 72\n#### 72", "72", "memory:1")]


def test_expected_numbers_are_those_of_the_file_of_facts() -> None:
    tables = {table["id"]: table for table in read_yaml(FACTS)["tables"]}
    for name in PUBLISHED:
        expects = RECIPES[name].expects
        if "table" in expects:
            table = tables[expects["table"]]
            rows = table["groups"][expects["group"]] if "group" in expects else table["rows"]
            assert list(expects["avg@12"].values()) == rows[expects["row"]], name
            assert list(expects["avg@12"]) == ["aime24", "aime25", "aime26", "hmmt25", "average"]
    figures = {figure["id"]: figure for figure in read_yaml(FACTS)["figures"]}
    gains = RECIPES["budgets-opasd"].expects["gain_over_opsd"]
    assert list(gains.values()) == figures["generation-budget"]["series"]["OPASD − OPSD"]
    for method in ("opsd", "opasd"):
        expects = RECIPES[f"{method}-qwen3-4b"].expects
        assert [expects["pass@1"], expects["pass@12"]] == figures["pass-at-k"]["series"][method.upper()]
        point = {"x": expects["hours"], "y": expects["avg@12"]["average"], "size": expects["generated_tokens"]}
        assert point == figures["efficiency"]["points"][method.upper()]
        assert RECIPES[f"budgets-{method}"].expects["avg@12_by_budget"] == {"16384": expects["avg@12"]["average"]}


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's source is not here")
def test_expected_numbers_are_the_papers() -> None:
    text = PAPER.read_text(encoding="utf-8")
    seen = set()
    for name in PUBLISHED:
        expects = RECIPES[name].expects
        if "table" not in expects:
            continue
        rows = _tex_rows(text, LABELS[expects["table"]])
        group, row = expects.get("group", ""), _plain(expects["row"])
        assert list(expects["avg@12"].values()) == rows[group, row], name
        seen.add((expects["table"], group, row))
    for table, label in LABELS.items():
        measured = {key for key in _tex_rows(text, label) if key[1] not in ("mean", "std", "95%ci")}
        assert {(group, row) for name, group, row in seen if name == table} == measured
    flat = " ".join(text.split())
    four = {method: RECIPES[f"{method}-qwen3-4b"].expects for method in ("opsd", "opasd")}
    gains = RECIPES["budgets-opasd"].expects["gain_over_opsd"].values()
    tokens = {method: f"${expects['generated_tokens'] / 1e6}$ million" for method, expects in four.items()}
    for sentence in (
        f"${four['opasd']['pass@1']}$, compared with ${four['opsd']['pass@1']}$",
        f"Pass@12 from ${four['opsd']['pass@12']}$ to ${four['opasd']['pass@12']}$",
        f"from ${four['opsd']['hours']}$ to ${four['opasd']['hours']}$ hours",
        f"{tokens['opasd']} response tokens compared with {tokens['opsd']}",
        "gains of ${:.2f}$, ${:.2f}$, and ${:.2f}$ points at $16$K, $28$K, and $38$K".format(*gains),
        "average of ${first_20_steps}$ over the first 20 steps to ${last_20_steps}$".format(
            **four["opasd"]["attention_divergence"]
        ),
    ):
        assert sentence in flat, sentence


def _tex_rows(text: str, label: str) -> dict[tuple[str, str], list[float]]:
    """(group, row) ─► numbers, of the table with this label."""
    body = text.split(rf"\label{{tab:{label}}}")[1].split(r"\end{tabular}")[0].split(r"\midrule", 1)[1]
    rows, group = {}, ""
    for line in body.replace("\n", " ").split(r"\\"):
        plain = re.sub(r"\\(midrule|bottomrule|quad)", " ", line)
        if heading := re.search(r"\\textit\{(.*?)\}", plain):
            group = heading[1]
            plain = plain[heading.end() :].partition(r"\\")[2] or plain[heading.end() + 1 :]
        cells = [re.sub(r"\\textbf\{(.*?)\}", r"\1", cell).strip() for cell in plain.split("&")]
        if len(cells) == 6 and not cells[1].startswith("$"):
            rows[group, _plain(cells[0])] = [float(cell) for cell in cells[1:]]
    return rows


def _plain(text: str) -> str:
    return re.sub(r"[\s\\]", "", text).casefold()


def _leaves(values: dict[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*prefix, key))
        else:
            yield (*prefix, key), value


@pytest.mark.parametrize("name", recipe_names())
def test_what_a_recipe_loads_from_the_hub_is_pinned(name: str) -> None:
    config = load_recipe(name).config()
    data = [config.data, *config.validation_data.values()]
    named = {config.model.name_or_path: config.model.revision} | {part.source: part.revision for part in data}
    for source, revision in named.items():
        if "/" in source:
            assert re.fullmatch("[0-9a-f]{40}", revision or ""), source
    for benchmark in find_benchmarks(["aime24", "aime25", "aime26", "hmmt25", "gsm8k"]):
        assert named.get(benchmark.source, benchmark.revision) == benchmark.revision


def test_a_commit_goes_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(
        "extends: opasd-qwen3-1.7b\nmodel: {name_or_path: a/b}\ndata: {source: c/d, revision: e}\n"
        "validation_data: {aime24: {source: f/g}, aime25: {sample: 3}}\n"
    )
    parent, other = load_recipe("opasd-qwen3-1.7b").config(), load_recipe(str(tmp_path / "other.yaml")).config()
    assert (other.model.revision, other.data.revision) == (None, "e")
    assert other.validation_data["aime24"].revision is None
    assert other.validation_data["aime25"].revision == parent.validation_data["aime25"].revision
    (tmp_path / "same.yaml").write_text("extends: opasd-qwen3-1.7b\nmodel: {name_or_path: Qwen/Qwen3-1.7B}\n")
    assert load_recipe(str(tmp_path / "same.yaml")).config() == parent
    _, _, flagged = parser().parse(["opasd-qwen3-1.7b", "--model", "a/b", "--data", "mine.jsonl"])
    assert (flagged.model.revision, flagged.data.revision) == (None, None)
    _, _, flagged = parser().parse(["opasd-qwen3-1.7b", "--model", "a/b", "--revision", "r"])
    assert flagged.model.revision == "r"
