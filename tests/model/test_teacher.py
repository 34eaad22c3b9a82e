"""The teacher: the right weights while it judges, and a student that never notices."""

import contextlib

import pytest
import torch
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn

from opasd.config import TeacherConfig
from opasd.errors import ConfigError
from opasd.model.teacher import Teacher
from tests.models import add_lora, make_model

IDS = torch.tensor([[5, 9, 33, 2, 71]])
UPDATES = ("frozen", "ema", "snapshot", "live")
LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])


def make(adaptation: str = "full", dtype: torch.dtype = torch.float32) -> nn.Module:
    model = make_model("qwen3", dtype=dtype)
    return add_lora(model) if adaptation == "lora" else model


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits.clone()


def move(model: nn.Module, scale: float = 0.1) -> None:
    with torch.no_grad():
        for parameter in trained(model).values():
            parameter.add_(scale * torch.randn(parameter.shape).to(parameter.dtype))


def values(teacher: Teacher) -> dict[str, Tensor]:
    """The trained weights as the teacher judges with them."""
    names = list(trained(teacher.model))
    with teacher.judging():
        return {name: parameter.clone() for name, parameter in teacher.model.named_parameters() if name in names}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# ---- whose weights --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("saved", [None, ["lm_head"]])
def test_frozen_with_adapters_is_the_base_bit_for_bit_and_holds_no_copy(saved):
    base = make_model("qwen3")
    expected = logits(base)
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], modules_to_save=saved))
    names = list(trained(model))
    teacher = Teacher(model, TeacherConfig(update="frozen"))
    assert teacher.state_dict() == {}
    for _ in range(3):
        move(model)
        teacher.after_step(1)
        student = logits(model)
        with teacher.judging():
            assert torch.equal(logits(model), expected)
            assert list(trained(model)) == names
        assert torch.equal(logits(model), student)
        assert not torch.equal(student, expected)


def test_frozen_without_adapters_is_the_initial_model():
    model = make()
    expected = logits(model)
    teacher = Teacher(model, TeacherConfig(update="frozen"))
    for step in range(1, 4):
        move(model)
        teacher.after_step(step)
        with teacher.judging():
            assert torch.equal(logits(model), expected)
        assert not torch.equal(logits(model), expected)


@pytest.mark.parametrize("update", ["frozen", "ema", "snapshot"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copies_on_the_host_change_no_value(update, dtype):
    """And the device holds one role's weights at a time: both are judged with in the same memory."""
    settings = {"update": update, "snapshot_every": 2, "ema_decay": 0.5}
    found = []
    for offload in (False, True):
        torch.manual_seed(0)
        model, seen = make(dtype=dtype), []
        places = [parameter.data_ptr() for parameter in model.parameters()]
        teacher = Teacher(model, TeacherConfig(**settings, offload=offload))
        for step in range(1, 5):
            move(model)
            teacher.after_step(step)
            with teacher.judging():
                seen.append(logits(model))
                kept = [parameter.data_ptr() for parameter in model.parameters()] == places
                assert kept == offload
            seen.append(logits(model))
        again = Teacher(make(dtype=dtype), TeacherConfig(**settings, offload=offload))
        again.load_state_dict(teacher.state_dict())
        assert same(teacher.state_dict(), again.state_dict())
        found.append((seen, teacher.state_dict()))
    assert all(torch.equal(*pair) for pair in zip(found[0][0], found[1][0], strict=True))
    assert same(found[0][1], found[1][1])


def test_an_offloaded_teacher_without_weights_of_its_own_is_told(caplog):
    Teacher(make("full"), TeacherConfig(update="live", offload=True))
    assert "teacher.offload: this teacher has no weights of its own" in caplog.text


def trained_before(model: nn.Module) -> nn.Module:
    return add_lora(model)


def beside_a_trained_one(model: nn.Module) -> nn.Module:
    """A new adapter on top of one that stays as it is."""
    both = add_lora(model)
    both.add_adapter("new", LORA)
    both.base_model.set_adapter(["default", "new"])
    for name, parameter in both.named_parameters():
        parameter.requires_grad_(".new." in name)
    return both


def with_saved_head(model: nn.Module) -> nn.Module:
    saved = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"]))
    with torch.no_grad():
        saved.lm_head.modules_to_save["default"].weight.mul_(1.5)
    return saved


@pytest.mark.parametrize(
    "adapted",
    [
        trained_before,
        beside_a_trained_one,
        with_saved_head,
        lambda model: get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights="pissa")),
        lambda model: get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights="olora")),
        lambda model: get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False)),
        lambda model: get_peft_model(model, IA3Config(target_modules=["k_proj"], feedforward_modules=[])),
    ],
    ids=["trained", "stacked", "saved head", "pissa", "olora", "random", "ia3"],
)
def test_frozen_is_the_initial_model_whatever_its_adapters_begin_with(adapted):
    model = adapted(make_model("qwen3")).eval()
    expected, before = logits(model), {name: p.requires_grad for name, p in model.named_parameters()}
    teacher = Teacher(model, TeacherConfig(update="frozen"))
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before
    for _ in range(2):
        move(model)
        with teacher.judging():
            torch.testing.assert_close(logits(model), expected)
        assert not torch.allclose(logits(model), expected)


@pytest.mark.parametrize("update", UPDATES)
def test_what_is_not_trained_stays_so(update):
    """As in LoRA-FA; PEFT marks every weight of an adapter when it has been off."""
    model = get_peft_model(make_model("qwen3"), LORA)
    for name, parameter in model.named_parameters():
        if "lora_A" in name or "layers.0." in name:
            parameter.requires_grad_(False)
    names = set(trained(model))
    Teacher(model, TeacherConfig(update=update))
    assert set(trained(model)) == names


@pytest.mark.parametrize("options", [{"bias": "lora_only"}, {"bias": "all"}, {"modules_to_save": ["lm_head"]}], ids=str)
def test_frozen_covers_what_trains_beside_adapters(options):
    """Biases are not switched off with the adapters; without copies of them θ₀ would drift."""
    base = make_model("qwen2")
    expected = logits(base)
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], **options))
    teacher = Teacher(model, TeacherConfig(update="frozen"))
    move(model)
    with teacher.judging():
        assert torch.equal(logits(model), expected)
    assert all("lora_" not in name for name in teacher.state_dict())
    assert (teacher.state_dict() == {}) == ("modules_to_save" in options)


@pytest.mark.parametrize("adaptation", ["full", "lora"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_ema_has_its_closed_form(adaptation, dtype):
    """θ_T = d^n·θ₀ + (1 − d)·Σ d^(n−i)·θ_i, and in bfloat16 nothing worse than one rounding of it."""
    model, decay, steps = make(adaptation, dtype), 0.9, 12
    teacher = Teacher(model, TeacherConfig(update="ema", ema_decay=decay))
    history = [{name: parameter.detach().double().clone() for name, parameter in trained(model).items()}]
    for step in range(1, steps + 1):
        move(model, 0.01)
        teacher.after_step(step)
        history.append({name: parameter.detach().double().clone() for name, parameter in trained(model).items()})
    weights = [decay**steps] + [(1 - decay) * decay ** (steps - i) for i in range(1, steps + 1)]
    actual = values(teacher)
    for name in history[0]:
        expected = sum(weight * state[name] for weight, state in zip(weights, history, strict=True))
        assert actual[name].dtype == dtype
        tolerance = torch.finfo(dtype).eps * (1 if dtype == torch.bfloat16 else 8)
        torch.testing.assert_close(actual[name].double(), expected, rtol=tolerance, atol=tolerance)


def test_a_slow_average_moves_in_low_precision_too():
    """Each change is far below half a unit of bfloat16; an average in that format would not move."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    model.weight.data.fill_(1.0)
    teacher = Teacher(model, TeacherConfig(update="ema", ema_decay=0.999))
    model.weight.data.fill_(2.0)
    for step in range(1, 1001):
        teacher.after_step(step)
    with teacher.judging():
        assert float(model.weight) == pytest.approx(2 - 0.999**1000, rel=2**-8)


def test_an_average_of_nothing_old_is_the_student():
    model = make()
    teacher = Teacher(model, TeacherConfig(update="ema", ema_decay=0.0))
    move(model)
    teacher.after_step(1)
    assert same(values(teacher), dict(trained(model)))


@pytest.mark.parametrize("adaptation", ["full", "lora"])
def test_snapshots_are_taken_at_their_steps_only(adaptation):
    model = make(adaptation)
    teacher = Teacher(model, TeacherConfig(update="snapshot", snapshot_every=3))
    expected = {name: parameter.detach().clone() for name, parameter in trained(model).items()}
    for step in range(1, 8):
        move(model)
        teacher.after_step(step)
        if step in (3, 6):
            expected = {name: parameter.detach().clone() for name, parameter in trained(model).items()}
        assert same(values(teacher), expected)


@pytest.mark.parametrize("adaptation", ["full", "lora"])
def test_live_is_the_student(adaptation):
    model = make(adaptation)
    teacher = Teacher(model, TeacherConfig(update="live"))
    assert teacher.state_dict() == {}
    move(model)
    teacher.after_step(1)
    expected = logits(model)
    with teacher.judging():
        assert torch.equal(logits(model), expected)


def test_ema_and_snapshot_begin_as_the_student():
    for update in ("ema", "snapshot"):
        model = make("lora")
        expected = logits(model)
        teacher = Teacher(model, TeacherConfig(update=update))
        move(model)
        with teacher.judging():
            assert torch.equal(logits(model), expected)


# ---- the student never notices --------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("adaptation", ["full", "lora"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_student_is_as_before(update, adaptation, fails):
    model = make(adaptation).train()
    teacher = Teacher(model, TeacherConfig(update=update))
    move(model)
    before = trained(model)
    pointers = {name: parameter.data_ptr() for name, parameter in before.items()}
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with contextlib.suppress(KeyError), teacher.judging():
        assert not torch.is_grad_enabled()
        assert not model.training
        assert not model(input_ids=IDS).logits.requires_grad
        if fails:
            raise KeyError
    after = trained(model)
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)
    assert {name: parameter.data_ptr() for name, parameter in after.items()} == pointers
    assert same(state, model.state_dict())
    assert torch.is_grad_enabled()
    assert all(module.training for module in model.modules())
    assert model(input_ids=IDS).logits.requires_grad


def test_the_teacher_has_no_dropout():
    base = make_model("qwen3")
    expected = logits(base)
    base.config.attention_dropout = 0.5
    for module in base.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"], lora_dropout=0.5)).train()
    with Teacher(model, TeacherConfig(update="frozen")).judging():
        assert torch.equal(logits(model), expected)
    assert not torch.equal(logits(model), logits(model))


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("adaptation", ["full", "lora"])
def test_judging_does_not_disturb_the_optimizer(update, adaptation):
    """Training with judgings in between gives the weights of training without, bit for bit."""

    def train(*, judged: bool) -> dict[str, Tensor]:
        model = make(adaptation).train()
        optimizer = torch.optim.AdamW(trained(model).values(), lr=1e-2)
        teacher = Teacher(model, TeacherConfig(update=update, snapshot_every=2, ema_decay=0.5))

        def judge() -> None:
            with teacher.judging() if judged else contextlib.nullcontext():
                logits(model)

        for step in range(1, 5):
            judge()
            model(input_ids=IDS).logits.logsumexp(-1).mean().backward()
            judge()
            optimizer.step()
            optimizer.zero_grad()
            teacher.after_step(step)
        assert set(optimizer.state) == set(trained(model).values())
        return {name: parameter.detach().clone() for name, parameter in trained(model).items()}

    assert same(train(judged=True), train(judged=False))


def test_copies_are_swapped_in_by_reference():
    """A judging costs no memory beside the copies that are there anyway."""
    model = make()
    teacher = Teacher(model, TeacherConfig(update="snapshot"))
    copies = {copy.data_ptr() for copy in teacher.state_dict().values()}
    with teacher.judging():
        assert {parameter.data_ptr() for parameter in model.parameters()} == copies
    assert {parameter.data_ptr() for parameter in model.parameters()}.isdisjoint(copies)


def test_only_trained_weights_are_copied():
    model = make("lora")
    copies = Teacher(model, TeacherConfig(update="ema")).state_dict()
    assert isinstance(model, PeftModel)
    assert copies.keys() == trained(model).keys()
    assert all("lora_" in name for name in copies)


# ---- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("adaptation", ["full", "lora"])
def test_a_loaded_teacher_goes_on_as_the_saved_one(update, adaptation):
    config = TeacherConfig(update=update, snapshot_every=2)
    model = make(adaptation)
    teacher = Teacher(model, config)
    for step in range(1, 4):
        move(model)
        teacher.after_step(step)
    saved = {name: value.clone() for name, value in teacher.state_dict().items()}
    other = make(adaptation)
    resumed = Teacher(other, config)
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(saved)
    assert same(values(resumed), values(teacher))
    for part in (model, other):
        torch.manual_seed(9)
        move(part)
    teacher.after_step(4)
    resumed.after_step(4)
    assert same(values(resumed), values(teacher))


@pytest.mark.parametrize("change", [lambda state: state.popitem(), lambda state: state.update(odd=torch.zeros(1))])
def test_another_teachers_state_is_refused(change):
    teacher = Teacher(make("lora"), TeacherConfig(update="ema"))
    state = teacher.state_dict()
    change(state)
    with pytest.raises(ConfigError, match="such as .*; resume with"):
        teacher.load_state_dict(state)
