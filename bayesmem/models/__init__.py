"""Language models: embedding, residual blocks over any mixers, head."""

from bayesmem.models.config import ModelConfig
from bayesmem.models.language_model import LanguageModel, LMState
from bayesmem.models.parameters import parameter_counts

__all__ = ["LMState", "LanguageModel", "ModelConfig", "parameter_counts"]
