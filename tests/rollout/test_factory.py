"""The table of engines: each entry leads to a class, and a class with an entry is an engine."""

import pytest

from opasd.choices import ENGINES, EngineEntry
from opasd.config import ModelConfig, RolloutConfig
from opasd.errors import ConfigError
from opasd.rollout.engine import AdapterEngine, Completion, RolloutEngine
from opasd.rollout.factory import engine_kind, make_engine, serve_base
from tests.training import TOKENIZER, make_model


def test_an_engine_without_token_ids_is_refused_for_training():
    with pytest.raises(ConfigError, match="openai returns texts without token ids; use transformers"):
        make_engine(RolloutConfig(engine="openai", servers={"urls": ["http://localhost:1"]}), None, None, longest=8)


@pytest.mark.parametrize("name", sorted(ENGINES.keys() - {"openai"}))
def test_every_entry_leads_to_a_class_that_makes_engines(name):
    kind = engine_kind(name)
    assert isinstance(kind, type)
    assert issubclass(kind, RolloutEngine)
    assert callable(kind.for_training)
    assert callable(kind.for_evaluation)


class SilentEngine(AdapterEngine):
    """An engine from outside the package."""

    def __init__(self, **made_for):
        self.made_for = made_for

    @classmethod
    def for_training(cls, config, model, tokenizer, **made_for):
        return cls(**made_for)

    for_evaluation = for_training

    def use_adapter(self, path):
        pass

    def generate(self, prompts, sampling, seeds, *, measured=0):
        return [Completion((0,), "length") for _ in prompts]


def test_an_engine_is_one_class_and_one_entry(monkeypatch):
    monkeypatch.setitem(ENGINES, "silent", EngineEntry(f"{__name__}:SilentEngine"))
    config = RolloutConfig().model_copy(update={"engine": "silent"})
    engine = make_engine(config, make_model(), TOKENIZER, longest=9)
    assert isinstance(engine, SilentEngine)
    assert engine.made_for == {"longest": 9}
    served = serve_base(config, ModelConfig(), TOKENIZER, longest=7)
    assert isinstance(served, SilentEngine)
    assert served.made_for == {"longest": 7, "adapters": ()}
