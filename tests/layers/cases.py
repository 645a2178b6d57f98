"""Every mixer, with the options that change its path through the code, and one jitted call."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bayesmem.layers import build_mixer

WIDTH = 16
BATCH = 3
STEPS = 20
LENGTH = STEPS * WIDTH
"""Terms summed on the way to an output: for `tests.tolerances`."""

QUICK_BUILD = {"xla_backend_optimization_level": 0}
"""Compiler options: the many small programs of these tests run once or twice each."""

CASES = {
    "bayesian": ("bayesian", {"num_heads": 2, "chunk_size": 8}),
    "bayesian_rotating": (
        "bayesian",
        {
            "num_heads": 2,
            "head_dim": 4,
            "value_dim": 6,
            "num_groups": 2,
            "transition": "diagonal",
            "rotation": True,
            "learn_prior": True,
            "prior_var": 2.0,
            "conv_size": 4,
            "chunk_size": 8,
        },
    ),
    "bayesian_scalar": (
        "bayesian",
        {
            "num_heads": 2,
            "num_value_heads": 4,
            "transition": "scalar",
            "qk_bias": 1.0,
            "chunk_size": 8,
        },
    ),
    "deltanet": ("deltanet", {"num_heads": 2, "negative_eigenvalues": True, "chunk_size": 8}),
    "deltanet_wide": (
        "deltanet",
        {
            "num_heads": 2,
            "head_dim": 6,
            "expand_v": 4 / 3,
            "negative_eigenvalues": True,
            "output_gate": "silu",
            "chunk_size": 8,
        },
    ),
    "gated_deltanet": (
        "gated_deltanet",
        {
            "num_heads": 2,
            "head_dim": 4,
            "num_value_heads": 4,
            "expand_v": 1.5,
            "qk_bias": 0.5,
            "chunk_size": 8,
        },
    ),
    "kda": ("kda", {"num_heads": 2, "chunk_size": 8}),
    "linear_attention": (
        "linear_attention",
        {"num_heads": 2, "feature_map": "elu+1", "chunk_size": 8},
    ),
    "retnet": ("retnet", {"num_heads": 2, "chunk_size": 8}),
    "gla": ("gla", {"num_heads": 2, "expand_k": 0.5, "decay_rank": 4, "chunk_size": 8}),
    "gsa": ("gsa", {"num_heads": 2, "num_slots": 5, "decay_rank": 4, "chunk_size": 8}),
    "mamba2": (
        "mamba2",
        {"num_heads": 4, "state_dim": 5, "num_groups": 2, "chunk_size": 8},
    ),
    "mamba2_gated_groups": (
        "mamba2",
        {
            "num_heads": 4,
            "head_dim": 3,
            "state_dim": 5,
            "num_groups": 2,
            "conv_bias": True,
            "output_norm": "gated_groups",
            "chunk_size": 8,
        },
    ),
    "mamba2_plain": (
        "mamba2",
        {"num_heads": 4, "state_dim": 5, "output_norm": "none", "chunk_size": 8},
    ),
    "attention": ("attention", {"num_heads": 2, "num_kv_heads": 1, "max_length": 32}),
    "ramnet": ("ramnet", {"num_heads": 2, "digits": 3, "base": 2, "top_k": 3}),
    "ramnet_ablated": (
        "ramnet",
        {
            "num_heads": 2,
            "value_dim": 6,
            "digits": 2,
            "base": (4, 3),
            "top_k": 9,
            "conv_size": 3,
            "cape_share": 1.0,
            "retention": "pdma",
            "output_norm": False,
            "renormalise": True,
            "balance": 0.1,
        },
    ),
}


@functools.cache
def build(case: str, dtype: str = "float32") -> nn.Module:
    """Returns the layer of a case."""
    name, options = CASES[case]
    return build_mixer(name, WIDTH, options, dtype)


@functools.cache
def parameters(case: str):
    """Returns float32 parameters of a case, none of them at its special initial value."""
    layer = build(case)
    params = jax.jit(layer.init)(jax.random.key(1), jnp.zeros((1, 1, WIDTH)))
    params = nn.meta.unbox(params)
    leaves, tree = jax.tree.flatten(params)
    noise = np.random.default_rng(0)
    leaves = [leaf + 0.1 * noise.standard_normal(leaf.shape).astype("float32") for leaf in leaves]
    return jax.tree.unflatten(tree, leaves)


@functools.cache
def inputs(steps: int = STEPS, batch: int = BATCH, seed: int = 0) -> np.ndarray:
    """Returns x [B, T, W] float32."""
    x = np.random.default_rng(seed).standard_normal((batch, steps, WIDTH)).astype("float32")
    x.setflags(write=False)
    return x


@functools.cache
def _call(case: str, dtype: str):
    layer = build(case, dtype)
    return jax.jit(
        lambda params, x, state, ids: layer.apply(params, x, state, segment_ids=ids),
        compiler_options=QUICK_BUILD,
    )


def run(case: str, x, state=None, segment_ids=None, dtype: str = "float32"):
    """Returns the layer's (y, state) from one jitted call, as NumPy arrays."""
    ids = None if segment_ids is None else np.asarray(segment_ids, np.int32)
    return jax.tree.map(np.asarray, _call(case, dtype)(parameters(case), x, state, ids))


@functools.cache
def _gradients(case: str):
    layer = build(case)

    def loss(params, x, ids, weights):
        y, _ = layer.apply(params, x, segment_ids=ids)
        return jnp.sum(y * weights)

    return jax.jit(jax.grad(loss, argnums=(0, 1)), compiler_options=QUICK_BUILD)


def gradients(case: str, x, segment_ids, weights):
    """Returns the gradients of sum(y * weights) for the parameters and x."""
    ids = None if segment_ids is None else np.asarray(segment_ids, np.int32)
    return jax.tree.map(np.asarray, _gradients(case)(parameters(case), x, ids, weights))


def assert_trees_close(found, wanted, check, **how) -> None:
    """Asserts that two trees have the same structure and that `check` passes on their leaves."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        check(one, other, **how)
