"""Small language models of several mixers, and one jitted call."""

import functools

import jax
import numpy as np
from flax import linen as nn

from bayesmem.models import LanguageModel, ModelConfig
from tests.tolerances import assert_close

QUICK_BUILD = {"xla_backend_optimization_level": 0}
VOCAB, STEPS = 13, 16
OPTIONS = {
    "bayesian": {"num_heads": 2, "transition": "scalar", "chunk_size": 8},
    "attention": {"num_heads": 2, "num_kv_heads": 1},
    "retnet": {"num_heads": 2, "chunk_size": 8},
    "gated_deltanet": {"num_heads": 2, "num_value_heads": 4, "head_dim": 4, "chunk_size": 8},
    # The top K jump where scores tie. In these tests the K-th log weight is at least 5e-5 above the
    # next one for every token, head and layer; the forms differ by less than 1e-6 in it.
    "ramnet": {},
    "ramnet/moving": {"num_heads": 2, "digits": 3, "base": 3, "top_k": 4, "cape_share": 1.0},
    "ramnet/still": {"num_heads": 2, "digits": 2, "base": 4, "top_k": 3, "cape_share": 0.0},
}
MODELS = {
    "bayesian": ("bayesian",),
    "gated_deltanet": ("gated_deltanet",),
    "hybrid": ("bayesian", "attention", "retnet"),
    "ramnet": ("ramnet", "ramnet/moving", "ramnet/still"),
}
TOKENS = np.random.default_rng(0).integers(0, VOCAB - 1, (2, STEPS)).astype(np.int32)
PAD = VOCAB - 1
"""A token that stands for padding only, with an embedding like any other."""


SUMMED = STEPS * 16
"""Terms summed on the way to a gradient: for `tests.tolerances`."""
LENGTH = 6
"""For `tests.tolerances`: then atol + rtol are 1e-5 of the largest value in float32."""


def config(name="bayesian", form=None, **changes):
    """The config of a case; `form` names the implementation of the op in every layer."""
    mixers = MODELS[name]
    chosen = {} if form is None else {"implementation": form}
    values = {
        "vocab_size": VOCAB,
        "width": 16,
        "num_layers": max(2, len(mixers)),
        "mixers": mixers,
        "mixer_options": {mixer: OPTIONS[mixer] | chosen for mixer in mixers},
        "mlp_width": 24,
        "max_length": 24,
        "vocab_multiple": 8,
    }
    return ModelConfig(**values | changes)


@functools.cache
def parameters(name):
    """Parameters of a case, with embeddings of size 1 and logits of at most about 1.

    Then neither the norms nor the head are what makes errors small.
    """
    init = jax.jit(LanguageModel(config(name)).init, compiler_options=QUICK_BUILD)
    params = nn.meta.unbox(init(jax.random.key(0), TOKENS[:, :1]))
    for table, size in (("embedding", 1.0), ("head", 0.1)):
        values = params["params"][table]["table"]
        params["params"][table]["table"] = size * values / values.std()
    return params


@functools.cache
def _call(name, form):
    model = LanguageModel(config(name, form))
    return jax.jit(
        lambda params, tokens, state, ids: model.apply(params, tokens, state, segment_ids=ids),
        compiler_options=QUICK_BUILD,
    )


def run(name, tokens, state=None, ids=None, params=None, form=None):
    """Returns logits and state of one jitted call."""
    params = parameters(name) if params is None else params
    ids = None if ids is None else np.asarray(ids, np.int32)
    return _call(name, form)(params, tokens, state, ids)


def decode(name, tokens, state):
    """Returns logits and state of a call for each token."""
    parts = []
    for step in range(tokens.shape[1]):
        logits, state = run(name, tokens[:, step : step + 1], state)
        parts.append(logits)
    return np.concatenate(parts, axis=1), state


def close(found, wanted):
    """Asserts that values in float32 agree to 1e-5 of the largest one, and of 1."""
    assert_close(found, wanted, "float32", length=LENGTH)
