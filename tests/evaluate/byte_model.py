"""A small language model of random weights on byte tokens, whose choices differ."""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn

from bayesmem.models import LanguageModel, ModelConfig
from tests.models.cases import QUICK_BUILD


@functools.cache
def byte_model(mixer="gated_deltanet"):
    """Config and parameters; embeddings of size 1, logits of about 2."""
    config = ModelConfig(
        vocab_size=257,
        width=16,
        num_layers=1,
        mixers=(mixer,),
        mixer_options={mixer: {"num_heads": 2}},
        max_length=64,
    )
    init = jax.jit(LanguageModel(config).init, compiler_options=QUICK_BUILD)
    params = nn.meta.unbox(init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32)))["params"]
    for table, size in (("embedding", 1.0), ("head", 0.5)):
        values = params[table]["table"]
        params[table]["table"] = size * values / values.std()
    return config, params
