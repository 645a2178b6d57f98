"""Models: residual blocks over any mixers, with a head; of tokens, or of vectors with addresses."""

from bayesmem.models.address_model import AddressModel
from bayesmem.models.config import ModelConfig
from bayesmem.models.language_model import LanguageModel, LMState
from bayesmem.models.parameters import parameter_counts, stack_params, unroll_params

__all__ = [
    "AddressModel",
    "LMState",
    "LanguageModel",
    "ModelConfig",
    "parameter_counts",
    "stack_params",
    "unroll_params",
]
