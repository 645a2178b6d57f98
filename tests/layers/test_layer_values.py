"""What every layer computes: against NumPy, in bfloat16, in and out of jit, and its size (C7)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bayesmem.layers import MIXERS, build_mixer
from tests.layers.cases import (
    BATCH,
    CASES,
    LENGTH,
    QUICK_BUILD,
    STEPS,
    build,
    inputs,
    parameters,
    run,
)
from tests.layers.definitions import DEFINITIONS
from tests.tolerances import assert_close

each_mixer = pytest.mark.parametrize("case", CASES)


def test_every_mixer_is_a_case_and_has_a_definition():
    assert {name for name, _ in CASES.values()} == set(MIXERS) == set(DEFINITIONS)


@each_mixer
def test_equals_its_definition_in_numpy(case):
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), parameters(case)["params"])
    x = np.asarray(inputs(), np.float64)
    wanted = DEFINITIONS[CASES[case][0]](build(case), params, x)
    assert_close(run(case, inputs())[0], wanted, "float32", length=LENGTH)


@each_mixer
def test_bfloat16_activations_keep_float32_parameters_and_state(case):
    # Of bfloat16 numbers, so that both runs choose the same slots.
    x = np.asarray(jnp.asarray(inputs(), jnp.bfloat16), np.float32)
    wanted, _ = run(case, x)
    y, state = run(case, jnp.asarray(x, jnp.bfloat16), dtype="bfloat16")
    assert y.dtype == jnp.bfloat16
    assert_close(y, wanted, "bfloat16", length=STEPS)
    if case == "attention":
        assert state.key.dtype == state.value.dtype == jnp.bfloat16
    else:
        floats = [leaf for leaf in jax.tree.leaves(state) if leaf.dtype.kind != "i"]
        assert {str(leaf.dtype) for leaf in floats} == {"float32"}
    layer = build(case, "bfloat16")
    shapes = jax.eval_shape(layer.init, jax.random.key(0), jnp.zeros((1, 1, 16), jnp.bfloat16))
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(shapes)} == {"float32"}


@each_mixer
def test_jit_equals_eager(case):
    x = jnp.asarray(inputs()[:, :3])
    y, state = build(case).apply(parameters(case), x, build(case).init_state(BATCH))
    wanted_y, wanted_state = run(case, x, build(case).init_state(BATCH))
    assert_close(y, wanted_y, "float32", length=LENGTH)
    for found, wanted in zip(jax.tree.leaves(state), jax.tree.leaves(wanted_state), strict=True):
        assert_close(found, wanted, "float32", length=LENGTH)


@pytest.mark.parametrize(
    ("case", "count"),
    [
        # W = 16: q, k, v, gate and out of 16 x 16, the norm's 8, and the layer's own.
        ("bayesian", 5 * 256 + 8 + 2 * (32 + 2)),
        # q, k 16 x 8; v, gate 16 x 12; out; norm 6; conv; decay 128 + 8 + 2; noise; angle; prior.
        (
            "bayesian_rotating",
            2 * 128 + 3 * 192 + 6 + 4 * 28 + 138 + (32 + 2) + (64 + 4) + (128 + 8) + 2,
        ),
        # The bias of keys and queries, 2 x 8.
        ("bayesian_scalar", 2 * 256 + 3 * 512 + 8 + 2 * (64 + 4) + (64 + 4 + 4) + 16),
        ("deltanet", 4 * 256 + 8 + 4 * 48 + 32),
        # q, k 16 x 12; v, gate, out 16 x 16; norm 8; conv 4 x 40; beta.
        ("deltanet_wide", 2 * 192 + 3 * 256 + 8 + 160 + 32),
        # q, k 16 x 8; v, gate, out 16 x 24; norm 6; conv 4 x 40; beta; decay; bias 2 x 4.
        ("gated_deltanet", 2 * 128 + 3 * 384 + 6 + 160 + 64 + (64 + 4 + 4) + 8),
        ("kda", 5 * 256 + 8 + 4 * 48 + 32 + (128 + 128 + 16 + 2)),
        ("linear_attention", 5 * 256 + 8),
        ("retnet", 5 * 256 + 8),
        ("gla", 2 * 128 + 3 * 256 + 8 + (64 + 4 * 8 + 8)),
        # The decay of 2 x 5 slots.
        ("gsa", 5 * 256 + 8 + (64 + 4 * 10 + 10)),
        # B, C 16 x 10; x, z, out 16 x 16; norm 4; conv 4 x 36; decay; skip.
        ("mamba2", 2 * 160 + 3 * 256 + 4 + 144 + (64 + 4 + 4) + 4),
        # B, C 16 x 10; x, z, out 16 x 12; norm 12; conv (4 + 1) x 32; decay; skip.
        ("mamba2_gated_groups", 2 * 160 + 3 * 192 + 12 + 160 + (64 + 4 + 4) + 4),
        # B, C 16 x 5; no norm.
        ("mamba2_plain", 2 * 80 + 3 * 256 + 4 * 26 + (64 + 4 + 4) + 4),
        ("attention", 2 * 256 + 2 * 128),
        # v, gate, out 16 x 16; gate's bias; norm; forget; write and read 16 x 2 * 3 * 2, their
        # biases and temperatures.
        ("ramnet", 3 * 256 + 16 + 8 + 34 + 2 * (192 + 12 + 6)),
        # The same with slots of 6, a base for each digit, no norm, and conv 3 x (12 + 2 * 14).
        ("ramnet_ablated", 3 * 192 + 12 + 34 + 2 * (224 + 14 + 4) + 120),
    ],
)
def test_parameter_counts(case, count):
    assert sum(leaf.size for leaf in jax.tree.leaves(parameters(case))) == count


def test_loss_of_a_mamba2_batch_is_the_same_at_every_chunk_size():
    """Rates up to 16 and steps beyond their draw: decays far below what exp(-x) can hold (C6)."""
    x = 3 * inputs(130, batch=1)
    losses = []
    for chunk_size in (16, 32, 64, 128):
        layer = build_mixer("mamba2", x.shape[2], {"num_heads": 4, "chunk_size": chunk_size})
        params = nn.meta.unbox(layer.init(jax.random.key(0), x[:, :1]))
        decay = params["params"]["decay"]
        decay["dt_bias"] = decay["dt_bias"] + 6
        y, _ = jax.jit(layer.apply, compiler_options=QUICK_BUILD)(params, x)
        losses.append(float(jnp.mean(jnp.square(y))))
    assert losses[0] > 0
    assert_close(losses, np.full(4, losses[0]), "float32", length=130)
