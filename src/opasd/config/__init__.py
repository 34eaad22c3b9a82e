"""The configuration. Each field is documented once, by the text that `--help` shows. Imports no torch."""

from opasd.config.method import (
    DriftConfig,
    OPASDConfig,
    PromptConfig,
    RolloutConfig,
    SamplingConfig,
    ServersConfig,
    TeacherConfig,
    ValidationConfig,
    VLLMConfig,
    check_address,
)
from opasd.config.objective import AttentionLossConfig, ObjectiveConfig, Section, TokenLossConfig
from opasd.config.run import ColumnConfig, DataConfig, ModelConfig, RunConfig, TrainConfig

__all__ = [
    "AttentionLossConfig",
    "ColumnConfig",
    "DataConfig",
    "DriftConfig",
    "ModelConfig",
    "OPASDConfig",
    "ObjectiveConfig",
    "PromptConfig",
    "RolloutConfig",
    "RunConfig",
    "SamplingConfig",
    "Section",
    "ServersConfig",
    "TeacherConfig",
    "TokenLossConfig",
    "TrainConfig",
    "VLLMConfig",
    "ValidationConfig",
    "check_address",
]
