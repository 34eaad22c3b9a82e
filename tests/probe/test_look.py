"""Where a model looks, against whole attention matrices in float64; looking layers, the gate and the figure."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from opasd.config import PromptConfig
from opasd.data.made import needed_spans
from opasd.errors import CaptureError
from opasd.probe.look import Look, look, references, responses
from opasd.probe.measure import set_up
from opasd.probe.where import gate, looking, summarise_looks
from opasd.prompts.alignment import align
from opasd.prompts.needs import needed_steps
from opasd.recipes import load_recipe
from opasd.report.charts import svg
from opasd.report.looking import mass_by_layer


class Silent:
    def begin(self, total, done): ...

    def advance(self, label, samples, tokens, seconds): ...

    def say(self, text): ...


@pytest.fixture(scope="module")
def read():
    config = load_recipe("lab").config()
    setup = set_up(config, 3, Silent().say)
    texts = responses(setup, None, 512)
    return setup, texts, look(config, setup, texts, Silent())


def test_layers_that_the_model_has_not_are_refused(read):
    setup, texts, _ = read
    config = load_recipe("lab").config()
    attention = config.objective.attention.model_copy(update={"layers": [9]})
    config = config.model_copy(update={"objective": config.objective.model_copy(update={"attention": attention})})
    with pytest.raises(CaptureError, match="the qwen3 model has 4 attention layers"):
        look(config, setup, texts, Silent())


def matrices(model, ids):
    """Every layer's attention [L, H, N, N] by the model's own eager attention in float64."""
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids]), output_attentions=True)
    return torch.stack([layer[0] for layer in out.attentions])


def test_masses_and_shares_are_those_of_whole_matrices(read):
    """Sums over positions one by one, from the definition; no code of the losses."""
    setup, texts, looks = read
    folder = setup.model.config._name_or_path
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    problem, response = setup.problems[0], texts[0]
    pair, ids = problem.pair, response.ids
    tokenizer = setup.tokenizer
    text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    needs = needed_spans("lab", pair.problem, text)
    steps = needed_steps(pair, ids, needs, lambda part: tokenizer.decode(part, clean_up_tokenization_spaces=False))
    (mine,) = [one for one in looks if (one.problem, one.reference) == (pair.problem.id, "solution")]
    student, teacher = (matrices(model, [*prompt, *ids]) for prompt in (pair.student_ids, pair.teacher_ids))
    alignment = align(pair, len(ids))
    shared = list(zip(alignment.student_shared.tolist(), alignment.teacher_shared.tolist(), strict=True))
    assert mine.steps == len(steps) > 3
    for layer in range(len(mine.divergence)):
        found = {"student": 0.0, "teacher": 0.0, "projected": 0.0, "projected_statement": 0.0}
        for step in steps:
            s = student[layer].mean(0)[len(pair.student_ids) - 1 + step.token]
            t = teacher[layer].mean(0)[len(pair.teacher_ids) - 1 + step.token]
            s_all, t_all = sum(s[a] for a, _ in shared), sum(t[b] for _, b in shared)
            for a, b in shared:
                if a in step.copied:
                    found["student"] += float(s[a] / s_all) / len(steps)
                    found["teacher"] += float(t[b]) / len(steps)
                    found["projected"] += float(t[b] / t_all) / len(steps)
                if a in step.statement:
                    found["projected_statement"] += float(t[b] / t_all) / len(steps)
        for name, value in found.items():
            assert getattr(mine, name)[layer] == pytest.approx(value, abs=2e-4), (name, layer)
        head = 1
        rows = [(student[layer, head], len(pair.student_ids), 0), (teacher[layer, head], len(pair.teacher_ids), 1)]
        for (rows_NN, prompt, side), name in zip(rows, ("student_heads", "projected_heads"), strict=True):
            value = 0.0
            for step in steps:
                row = rows_NN[prompt - 1 + step.token]
                value += float(
                    sum(row[p[side]] for p in shared if p[0] in step.copied) / sum(row[p[side]] for p in shared)
                )
            assert getattr(mine, name)[layer][head] == pytest.approx(value / len(steps), abs=2e-4)
    rho, text_share = 0.0, 0.0
    for t in range(len(ids)):
        row = teacher[-1].mean(0)[len(pair.teacher_ids) - 1 + t]
        block = float(row[pair.reference.start : pair.reference.stop].sum())
        whole = block + float(sum(row[b] for _, b in shared))
        rho += block / whole / len(ids)
        text_share += float(row[pair.shown.start : pair.shown.stop].sum()) / whole / len(ids)
    assert mine.rho_text[-1] == pytest.approx(text_share, abs=2e-4)
    assert mine.rho_words[-1] == pytest.approx(rho - text_share, abs=2e-4)


def test_the_own_reference_comes_first_and_others_keep_the_wording():
    own = PromptConfig(reference="Use {pointers}.\n\n", teacher="{reference}Problem: {question}\n\n{instruction}")
    found = references(own)
    assert list(found) == ["pointers", "solution", "answer"]
    assert found["pointers"] == own
    assert found["answer"].teacher == own.teacher
    assert list(references(PromptConfig())) == ["solution", "pointers", "answer"]
    apart = references(
        PromptConfig(attention_reference="Use {pointers}.\n\n")
    )  # the attention loss's, not the token loss's
    assert list(apart) == ["pointers", "solution", "answer"]
    assert (apart["pointers"].reference, apart["pointers"].attention_reference) == ("Use {pointers}.\n\n", None)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0, 0.2))
def test_looking_layers_by_brute_force(masses, uniform):
    found = looking(masses, uniform)
    for n, mass in enumerate(masses):
        assert (n in found) == (all(2 * mass >= other for other in masses) and mass >= 10 * uniform)


def one(problem, student, projected, reference="pointers"):
    masses = {"student": student, "teacher": projected, "projected": projected}
    masses |= {"student_statement": student, "projected_statement": projected}
    masses |= {"student_heads": [[m] for m in student], "projected_heads": [[m] for m in projected]}
    layers = [0.25] * len(student)
    loss = dict.fromkeys(("template", "problem", "words", "response"), layers)
    return Look(problem, reference, 4, 0.001, **masses, loss=loss, divergence=layers, rho_text=layers, rho_words=layers)


@pytest.mark.parametrize(
    ("targets", "verdict"), [((0.5, 0.6, 0.55), "passes"), ((0.1, 0.12, 0.1), "fails"), ((0.1, 0.9, 0.2), "open")]
)
def test_the_gate_compares_twice_the_students_mass(targets, verdict):
    looks = [one(f"p{n}", [0.0, 0.2], [0.0, target]) for n, target in enumerate(targets)]
    found = gate(looks, [1])
    assert found["verdict"] == verdict
    assert found["ratio"] == pytest.approx(sum(targets) / 0.6)
    assert found["margin"]["mean"] == pytest.approx(sum(targets) / 3 - 0.4)
    summary = summarise_looks(looks, "gold")
    assert (summary["looking_layers"], summary["looking_heads"]) == ([1], [[1, 0]])
    assert summary["references"]["pointers"]["gate"] == found
    assert (summary["problems"], summary["steps"]) == (3, 12)


def test_without_a_looking_layer_the_gate_is_at_the_best_ones():
    """0.008 is eight times the even share: it does not look."""
    summary = summarise_looks([one(f"p{n}", [0.001, 0.008, 0.005], [0.0, 0.03, 0.03]) for n in range(3)], "gold")
    assert (summary["looking_layers"], summary["looking_heads"], summary["gate_layers"]) == ([], [], [1, 2])
    assert summary["references"]["pointers"]["gate"]["ratio"] == pytest.approx(0.06 / 0.013)


def test_the_figure_has_a_curve_for_the_student_and_for_each_reference():
    looks = [one(f"p{n}", [0.1, 0.2], [0.2, 0.4 + n / 9], name) for name in ("pointers", "answer") for n in range(2)]
    figure = mass_by_layer(summarise_looks(looks, "gold"), "lookup")
    assert [series.name for series in figure.series] == ["target, pointers", "target, answer", "student"]
    assert [y for _, y in figure.series[-1].points] == [0.1, 0.2]
    assert "target, pointers" in svg(figure, standalone=True)
