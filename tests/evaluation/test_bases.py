"""A base model for evaluation: its context, and the engine that the settings name."""

import pytest

from opasd.config import ModelConfig, RolloutConfig
from opasd.errors import ConfigError
from opasd.evaluation.bases import Base
from opasd.rollout.transformers.swapping import SwappingEngine
from opasd.rollout.vllm.server import ServerEngine
from tests.evaluation.lab import EIGHT_ROWS, LAB, make_adapter


def test_the_engine_is_the_one_that_the_settings_name(tmp_path):
    base = Base(LAB, EIGHT_ROWS)
    assert base.context == 1024
    assert isinstance(base.engine(100, []), SwappingEngine)
    servers = RolloutConfig.model_validate({"engine": "vllm_server", "servers": {"urls": ["http://localhost:1"]}})
    engine = Base(LAB, servers).engine(10**6, [make_adapter(tmp_path / "adapter", 0)])
    assert isinstance(engine, ServerEngine)
    assert engine.longest == 1024
    assert "--server" in engine.addresses
    assert Base(LAB, servers.model_copy(update={"max_model_len": 300})).context == 300


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot load the tokenizer"):
        Base(ModelConfig(name_or_path=str(tmp_path)), EIGHT_ROWS)
