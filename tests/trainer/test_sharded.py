"""Several processes give what one gives, for every objective and teacher: whole weights (DDP), FSDP2, ZeRO-2, ZeRO-3.

`make test` runs two processes; with whole weights some of the cases. `make test-scale` runs four in all cases, and
DeepSpeed, where it is installed.
"""

import shutil
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from accelerate import ParallelismConfig
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from opasd.config import RunConfig
from opasd.errors import ConfigError
from opasd.losses.terms import LossTerm, rejection
from opasd.rollout.adapters import AdapterExport
from opasd.trainer import session
from opasd.trainer.setup import check_sharding
from tests import nursery, processes
from tests.rollout.vllm.fake_server import Process
from tests.training import PROBLEMS, TOKENIZER, make_model, make_trainer, rows

LONGER = {"rollout": {"max_new_tokens": 30, "temperature": 1.0, "top_k": 0, "top_p": 1.0}, "tokens_per_microbatch": 400}
TOKENS, ATTENTION = {"attention_weight": 0.0}, {"token_weight": 0.0}
BALANCED = {"attention_weight": "balanced", "gradients_every": 2, "token": {"clip": "none"}}
AVERAGE, SNAPSHOT = {"update": "ema", "ema_decay": 0.5}, {"update": "snapshot", "snapshot_every": 2}
ADAM = {"optim": "adamw_torch", "learning_rate": 1e-2, "adam_epsilon": 1e-4}
"""An optimizer whose state a checkpoint holds; its ε keeps it from enlarging differences of rounding."""
FAMILY = {
    "attention": {
        "layers": "all",
        "heads": "each",
        "support": "content",
        "queries": "solution_mass",
        "query_threshold": 0.7,
    }
}


def even(batch):
    """The likelihood of half of the problems' rollouts."""
    chosen = [replace(rollout, correct=int(rollout.pair.problem.answer) % 2 == 0) for rollout in batch.rollouts]
    return rejection(replace(batch, rollouts=chosen))[0]


def spoil(_embeddings, given, states_BNE):
    """Make the states of one problem's context NaN where gradients are taken, so that no rollout changes."""
    texts = TOKENIZER.batch_decode(given[0])
    spoiled = [torch.is_grad_enabled() and PROBLEMS[5].question in text for text in texts]
    return states_BNE.masked_fill(torch.tensor(spoiled)[:, None, None], torch.nan)


CASES = {
    "adapters, a process without a problem": {"train_dataset": PROBLEMS[:5], **ADAM},
    "adapters, moving average, tokens alone": {"method": {"objective": TOKENS, "teacher": AVERAGE}},
    "adapters, snapshots": {"long": True, "method": {"teacher": SNAPSHOT}},
    "adapters, live teacher, attention alone": {
        "method": {"objective": ATTENTION, "teacher": {"update": "live"}},
        "eval_dataset": PROBLEMS[:3],
    },
    "adapters, sampled by servers": {"servers": True},
    "adapters, clipped and recomputed, checkpoints in parts": {
        "parts": True,
        "max_grad_norm": 0.01,
        "gradient_checkpointing": True,
        **ADAM,
    },
    "all weights, balanced gradients, an output head of its own, a process without a problem": {
        "measured": True,
        "lora": False,
        "untied": True,
        "train_dataset": PROBLEMS[:5],
        "method": {"objective": BALANCED},
    },
    "all weights, frozen teacher": {"lora": False, **ADAM},
    "all weights, moving average, attention alone": {
        "lora": False,
        "method": {"objective": ATTENTION, "teacher": AVERAGE},
    },
    "all weights, snapshots, tokens alone": {"lora": False, "method": {"objective": TOKENS, "teacher": SNAPSHOT}},
    "all weights, live teacher, an output head of its own": {
        "long": True,
        "lora": False,
        "untied": True,
        "method": {"teacher": {"update": "live"}},
    },
    "an output head that a term of some rollouts reads": {
        "lora": False,
        "untied": True,
        "method": {"objective": ATTENTION},
        "loss_terms": [LossTerm("even", even)],
        **ADAM,
    },
    "a rollout of one process without a finite state": {
        "spoiled": True,
        "lora": False,
        "train_dataset": PROBLEMS[:8],
        "method": {"on_non_finite": "skip"},
        **ADAM,
    },
    "an output head without gradient": {
        "long": True,
        "lora": False,
        "untied": True,
        "method": {"objective": ATTENTION | FAMILY},
    },
}
_NOTES = ("servers", "untied", "long", "measured", "parts", "spoiled")
"""What a case says beside arguments of the trainer."""
STATELESS = "adapters, moving average, tokens alone"
"""Resumed too, but by DeepSpeed: its optimizer keeps nothing."""
RESUMED = ("adapters, a process without a problem", "all weights, frozen teacher", STATELESS)
IN_PARTS = "adapters, clipped and recomputed, checkpoints in parts"
STEPS, SAVED = 3, 2
"""Steps of a run, and the step after which it is resumed."""
_BATCH = ("train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps")
_ZERO = {"zero_allow_untested_optimizer": True, **dict.fromkeys(_BATCH, "auto")}
KINDS = {
    "whole": {},
    "sharded": {"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"]}},
    "zero2": {"deepspeed": _ZERO | {"zero_optimization": {"stage": 2}, "gradient_clipping": "auto"}},
    "zero3": {  # some weights stay whole; the arguments say how gradients are clipped
        "deepspeed": _ZERO | {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 100}}
    },
}
ZERO = ("zero2", "zero3")
SCRIPT = """
import os, sys
from pathlib import Path
from tests.trainer.test_sharded import train_all
for kind in sys.argv[4:]:
    trainer = train_all(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], kind)
trainer.accelerator.end_training()
sys.stderr.flush()
os._exit(0)  # gloo's threads may abort an interpreter that takes its time to end
"""


def kinds(world):
    deepspeed = world > 2 and find_spec("deepspeed") is not None
    return ["whole"] if world == 1 else ["whole", "sharded", *(["zero2", "zero3"] if deepspeed else [])]


def cases(kind, world):
    """The names of the cases that this many processes run."""
    brief = world == 2
    if brief and kind == "whole":
        return [name for name, case in CASES.items() if name == RESUMED[0] or {"untied", "measured"} & case.keys()]
    kept = (name for name, case in CASES.items() if not (brief and "long" in case))
    return [name for name in kept if not (kind in ZERO and {"measured", "spoiled"} & CASES[name].keys())]


def resumes(name, kind):
    """Whether a case is resumed."""
    return name in RESUMED and not (name == STATELESS and kind in ZERO)


def compared(world):
    """The names of the cases that this many processes run in one way or another."""
    return [name for name in CASES if any(name in cases(kind, world) for kind in kinds(world))]


def train(folder, case, world, url, kind, *, resume=False):
    """Train a case for a few steps of four problems; each step moves the weights far enough to be seen."""
    validation = {"every": 2 if "eval_dataset" in case else 0, "sampling": {"max_new_tokens": 8}}
    method = LONGER | case.get("method", {}) | {"validation": validation}
    if "servers" in case:
        engine = {"engine": "vllm_server", "servers": {"urls": [url]}, "drift": {"every": 0}, "ahead": 1}
        method |= {"rollout": LONGER["rollout"] | engine}
    model = make_model()
    if "untied" in case:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    if "spoiled" in case:
        model.get_input_embeddings().register_forward_hook(spoil)
    own = {key: value for key, value in case.items() if key not in _NOTES}
    settings = {"optim": "sgd", "learning_rate": 1.0, "max_grad_norm": 0.0, "model": model} | own | {"method": method}
    settings |= KINDS[kind]
    if "parts" in case and kind == "sharded":
        settings["fsdp_config"] = settings["fsdp_config"] | {"state_dict_type": "SHARDED_STATE_DICT"}
    trainer = make_trainer(
        folder, **settings, max_steps=STEPS, save_steps=SAVED,
        per_device_train_batch_size=4 // world, gradient_accumulation_steps=1,
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume)
    trainer.close()
    return trainer


def resumed(begun, folder, case, world, kind):
    """Continue from the checkpoint of the run in `begun`, in another folder; return the weights at its end."""
    if first := PartialState().is_main_process:
        shutil.copytree(begun, folder, ignore=shutil.ignore_patterns(f"checkpoint-{STEPS}", "final"))
    PartialState().wait_for_everyone()
    trainer = train(folder, case, world, "", kind, resume=True)
    assert not first or [row["step"] for row in rows(folder)] == list(range(1, STEPS + 1))
    return trainer.accelerator.get_state_dict(trainer.model_wrapped)


_begin = PartialState.__init__


def start(kind):
    """Begin anew with accelerate; let it spread weights on a CPU too, where its code for accelerators runs as it is."""
    AcceleratorState._reset_state(reset_partial_state=True)
    types = {"sharded": DistributedType.MULTI_GPU} | dict.fromkeys(ZERO, DistributedType.DEEPSPEED)

    def begin_as_accelerator(self, *args, **kwargs):
        first = not PartialState._shared_state
        _begin(self, *args, **kwargs)
        if first:
            self.distributed_type = types[kind]
            if kind in ZERO:
                import deepspeed

                deepspeed.init_distributed("gloo")

    PartialState.__init__ = begin_as_accelerator if kind in types else _begin


def train_all(folder, world, url, kind, names=None):
    """Train cases in this process, all of its kind unless they are named; the first process saves the weights."""
    torch.set_num_threads(1)
    start(kind)
    for name in names or cases(kind, world):
        case, run = CASES[name], folder / kind / name
        trainer = train(run, case, world, url, kind)
        assert any(isinstance(weight, DTensor) for weight in trainer.model.parameters()) == (kind == "sharded")
        assert trainer.is_deepspeed_enabled == (kind in ZERO)
        results = {"weights": trainer.accelerator.get_state_dict(trainer.model_wrapped)}
        if world > 1 and (resumes(name, kind) or (name == IN_PARTS and kind == "sharded")):
            results["same"] = resumed(run, folder / kind / f"same {name}", case, world, kind)
            if kind not in ZERO and name in RESUMED:
                alone = folder.parent / "1" / "whole" / name
                results["from one"] = resumed(alone, folder / kind / f"one {name}", case, world, kind)
        if name == RESUMED[0]:
            export = AdapterExport(trainer.model, folder / f"exports-{trainer.args.process_index}")
            version = export.write()
            if trainer.is_world_process_zero():
                shutil.copytree(version, folder / kind / "adapter")
        if trainer.is_world_process_zero():
            torch.save(results, run / "weights.pt")
    return trainer


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.scale)])
def trained(tmp_path_factory, request):
    """The number of processes, and the folder with the runs of one process (`1`) and of several (`N`)."""
    folder, world = tmp_path_factory.mktemp("sharded"), request.param
    threads = torch.get_num_threads()
    with Process() as server:
        server.set(adapter="nothing")  # two runs of a server's adapters never have the same name
        try:
            train_all(folder / "1", 1, server.url, "whole", compared(world))
            for launched in filter(None, (kinds(world)[:2], kinds(world)[2:])):
                words = ["-c", SCRIPT, str(folder / "N"), str(world), server.url, *launched]
                for done in nursery.run_together(world, *words, DS_ACCELERATOR="cpu"):
                    assert done.returncode == 0, done.stderr[-3000:]
            start("whole")
            for kind in ("whole", "sharded"):
                for name in set(RESUMED) & set(cases(kind, world)):
                    begun = folder / "N" / kind / name
                    weights = resumed(begun, folder / f"{kind} {name}", CASES[name], 1, "whole")
                    torch.save(weights, folder / f"{kind} {name}.pt")
        finally:
            torch.set_num_threads(threads)
    return world, folder


def assert_close(actual, expected):
    assert actual.keys() == expected.keys()
    for key, weight in expected.items():
        torch.testing.assert_close(actual[key], weight, atol=1e-5, rtol=1e-4)


def results(folder, world, kind, name):
    return {
        what: {key.removeprefix("module."): weight for key, weight in weights.items()}
        for what, weights in torch.load(folder / world / kind / name / "weights.pt").items()
    }


@pytest.mark.parametrize("name", CASES)
def test_several_processes_equal_one(trained, name):
    """Weights, and of every step the loss, the gradient's norm and all other metrics."""
    world, folder = trained
    if name not in compared(world):
        pytest.skip("make test-scale runs it")
    # A weight that gets no gradient counts as trained in one process alone.
    unlike = {"epoch"} | ({"flops/update"} if "untied" in CASES[name] else set())
    alone, first = results(folder, "1", "whole", name), rows(folder / "1" / "whole" / name)
    for kind in (kind for kind in kinds(world) if name in cases(kind, world)):
        assert_close(results(folder, "N", kind, name)["weights"], alone["weights"])
        second = rows(folder / "N" / kind / name)
        assert len(first) == len(second) >= STEPS
        for one, several in zip(first, second, strict=True):
            if "spoiled" in CASES[name]:  # what shares a micro-batch with NaN is not read
                unlike = (one.keys() | several.keys()) - {"step", "skipped"}
            readings = ({key: value for key, value in row.items() if key not in unlike} for row in (one, several))
            assert next(readings) == pytest.approx(next(readings), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("name", RESUMED)
def test_a_run_is_resumed_with_any_number_of_processes(trained, name):
    """DeepSpeed's runs are resumed with as many."""
    world, folder = trained
    alone = results(folder, "1", "whole", name)["weights"]
    for kind in (kind for kind in kinds(world) if name in cases(kind, world) and resumes(name, kind)):
        divided = results(folder, "N", kind, name)
        assert_close(divided["same"], divided["weights"])
        if kind != "whole":  # DDP orders its sums in another way in the first step after it was started
            assert all(torch.equal(divided["same"][key], weight) for key, weight in divided["weights"].items())
        if kind not in ZERO:
            assert_close(divided["from one"], alone)
            assert_close(torch.load(folder / f"{kind} {name}.pt"), alone)


def test_parts_are_resumed_by_processes_that_share_the_weights_alone(trained, tmp_path):
    world, folder = trained
    begun = folder / "N" / "sharded" / IN_PARTS
    divided = results(folder, "N", "sharded", IN_PARTS)
    assert all(torch.equal(divided["same"][key], weight) for key, weight in divided["weights"].items())
    parts = [path.name for path in (begun / f"checkpoint-{SAVED}").glob("*/*.distcp")]
    assert len(parts) >= world
    assert (begun / "final" / "adapter_model.safetensors").is_file()
    start("whole")
    with pytest.raises(ConfigError, match="saved in parts .* and this run reads one whole; resume it as it began"):
        resumed(begun, tmp_path / "alone", CASES[IN_PARTS], 1, "whole")


def test_the_cases_move_the_weights(trained):
    """Otherwise equal weights would say nothing."""
    world, folder = trained
    for name in compared(world):
        first = results(folder, "1", "whole", name)["weights"]
        begun = make_trainer(folder / "start", lora=CASES[name].get("lora", True)).model.state_dict()
        assert max(float((first[key] - begun[key]).abs().max()) for key in first) > 1e-3


def test_an_adapter_is_written_whole(trained):
    world, folder = trained
    alone = load_file(folder / "1" / "whole" / "adapter" / "adapter_model.safetensors")
    for kind in kinds(world):
        assert_close(load_file(folder / "N" / kind / "adapter" / "adapter_model.safetensors"), alone)


@pytest.mark.parametrize("name", RESUMED)
def test_the_result_holds_the_whole_weights(trained, name):
    world, folder = trained
    alone, *others = (
        load_file(next((folder / part / name / "final").glob("*model.safetensors")))
        for part in ("1/whole", *(f"N/{kind}" for kind in kinds(world) if name in cases(kind, world)))
    )
    assert len(others) >= 1
    for weights in others:
        head = weights.pop("lm_head.weight", None)  # FSDP2 and ZeRO-2 write tied weights by both of their names
        assert head is None or torch.equal(head, weights["model.embed_tokens.weight"])
        assert_close(weights, alone)


def test_checkpoints_of_shards_have_the_form_of_those_of_one_process(trained):
    for name in RESUMED:
        alone, divided = (
            {path.name for path in (trained[1] / part / name / f"checkpoint-{SAVED}").iterdir()}
            for part in ("1/whole", "N/sharded")
        )
        assert {file for file in divided if not file.startswith("rng")} == alone - {"rng_state.pth"}


def test_sharding_that_would_be_ignored_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="fsdp: there is one process; start several with --num-processes"):
        make_trainer(tmp_path, fsdp=True)


@pytest.mark.parametrize(
    ("plugin", "stage", "message"),
    [
        (SimpleNamespace(fsdp_version=1), None, "use fsdp_version 2"),
        (SimpleNamespace(fsdp_version=2), 2, "on_non_finite: skip, but DeepSpeed has made the step"),
    ],
)
def test_sharding_that_would_not_end_is_refused(plugin, stage, message):
    state = SimpleNamespace(fsdp_plugin=plugin, deepspeed_plugin=SimpleNamespace(zero_stage=stage))
    args = SimpleNamespace(fsdp=True, deepspeed=stage, device=torch.device("cpu"))
    trainer = SimpleNamespace(accelerator=SimpleNamespace(state=state), args=args, is_deepspeed_enabled=stage)
    with pytest.raises(ConfigError, match=message):
        check_sharding(trainer, "skip")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fsdp": True}, "fsdp: there is one process"),
        ({"fsdp": True, "world_size": 2}, "fsdp: weights are spread over GPUs, and this run is on cpu; leave fsdp out"),
        ({"parallelism_config": ParallelismConfig(cp_size=2)}, "context parallelism .* set cp_size to 1"),
        ({"parallelism_config": ParallelismConfig(tp_size=2)}, "tensor parallelism .* set tp_size to 1"),
    ],
)
def test_arguments_are_refused_before_a_model_is_loaded(settings, message, tmp_path, monkeypatch):
    state = SimpleNamespace(distributed_type=DistributedType.MULTI_CPU)
    given = {"fsdp": False, "world_size": 1, "device": torch.device("cpu")}
    given |= {"deepspeed_plugin": None, "parallelism_config": None}
    args = SimpleNamespace(**given | {"distributed_state": state} | settings)
    monkeypatch.setattr(session, "training_arguments", lambda *_: args)
    monkeypatch.setattr(session, "load_model", lambda *_: pytest.fail("a model was loaded"))
    with pytest.raises(ConfigError, match=message):
        session.train(RunConfig(), tmp_path)


def test_copies_that_are_divided_do_not_wait_on_the_host():
    state = SimpleNamespace(fsdp_plugin=SimpleNamespace(fsdp_version=2))
    args = SimpleNamespace(fsdp=True, deepspeed=None, device=torch.device("cpu"))
    trainer = SimpleNamespace(accelerator=SimpleNamespace(state=state), args=args, is_deepspeed_enabled=False)
    with pytest.raises(ConfigError, match=r"teacher\.offload: FSDP2 divides the teacher's weights"):
        check_sharding(trainer, offload=True)


def test_the_example_of_a_configuration_asks_for_version_2():
    path = processes.ROOT / "examples" / "clusters" / "fsdp2.yaml"
    settings = ClusterConfig.from_yaml_file(path)
    assert settings.distributed_type == DistributedType.FSDP
    assert settings.fsdp_config["fsdp_version"] == 2
