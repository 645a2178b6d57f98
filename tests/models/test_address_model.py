"""The model over vectors with addresses: what it computes, queries, padding, gradients, errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec as P

from bayesmem.data.collision import CollisionTask, sample_collision
from bayesmem.layers import build_mixer
from bayesmem.models import AddressModel, ModelConfig, parameter_counts
from tests.layers.definitions import dense, rms_norm, silu
from tests.models.cases import QUICK_BUILD
from tests.tolerances import assert_close

TASK = CollisionTask(pairs=2, dims=4, labels=5, boost=1, floods=(1, 3))
SUMMED = TASK.length * 12
"""Terms summed on the way to a logit: for `tests.tolerances`."""
SHARED = {"num_heads": 2, "head_dim": 4, "conv_size": 0, "activation": "identity"}
OPTIONS = {
    "bayesian": SHARED | {"obs_var": 0.05, "prior_var": 3.0},
    "deltanet": SHARED | {"beta": 0.5},
    "gla": SHARED | {"decay_temperature": 1.0, "decay_rank": 4},
    "linear_attention": SHARED,
}


def config(*mixers, **changes):
    """A small config of these mixers, one a layer."""
    values = {
        "vocab_size": TASK.labels,
        "width": 12,
        "num_layers": len(mixers),
        "mixers": mixers,
        "mixer_options": {mixer: OPTIONS.get(mixer, {}) for mixer in mixers},
        "mlp_width": 10,
        "vocab_multiple": 8,
    }
    return ModelConfig(**values | changes)


@functools.cache
def batch():
    """A batch with rows of both lengths."""
    drawn = jax.jit(sample_collision, static_argnums=(0, 2))(TASK, jax.random.key(0), 6)
    assert len(set(drawn.query_positions[:, 0].tolist())) == 2
    return drawn


@functools.cache
def prepared(*mixers):
    """A model, and parameters whose logits are of about 1."""
    model = AddressModel(config(*mixers))
    init = jax.jit(model.init, compiler_options=QUICK_BUILD)
    params = nn.meta.unbox(init(jax.random.key(1), batch().tokens, batch().addresses))
    table = params["params"]["head"]["table"]
    params["params"]["head"]["table"] = table / table.std() / 4
    return model, params


def at_queries(model, params, rows):
    """Logits [B, Q, V] of a batch."""
    apply = jax.jit(functools.partial(model.apply, method="at_queries"))
    inputs = rows.tokens, rows.addresses, rows.query_positions
    return apply(params, *inputs, segment_ids=rows.segment_ids)


def close(found, wanted):
    assert_close(found, wanted, "float32", length=SUMMED)


def test_is_projection_blocks_norm_and_head():
    """The residual stream by hand, with the layers called one by one."""
    model, params = prepared("bayesian", "deltanet")
    given, parts = batch(), params["params"]
    x = dense(parts["input"], np.asarray(given.tokens))
    for layer, mixer in enumerate(("bayesian", "deltanet")):
        block = parts[f"blocks_{layer}"]
        y, _ = build_mixer(mixer, 12, OPTIONS[mixer]).apply(
            {"params": block["mixer"]},
            jnp.asarray(rms_norm(block["mixer_norm"], x)),
            segment_ids=given.segment_ids,
            addresses=given.addresses,
        )
        x = x + np.asarray(y)
        mlp, h = block["mlp"], rms_norm(block["mlp_norm"], x)
        x = x + dense(mlp["down"], silu(dense(mlp["gate"], h)) * dense(mlp["up"], h))
    wanted = rms_norm(parts["final_norm"], x) @ np.asarray(parts["head"]["table"]).T
    found = model.apply(params, given.tokens, given.addresses, segment_ids=given.segment_ids)
    assert found.shape == (*given.tokens.shape[:2], TASK.labels) and found.dtype == jnp.float32
    close(found, wanted[..., : TASK.labels])


@pytest.mark.parametrize("mixer", OPTIONS)
def test_logits_at_queries_are_those_of_the_row_without_padding(mixer):
    model, params = prepared(mixer, mixer)
    given = batch()
    found = at_queries(model, params, given)
    assert found.shape == (*given.targets.shape, TASK.labels)
    whole = model.apply(params, given.tokens, given.addresses, segment_ids=given.segment_ids)
    close(found, np.take_along_axis(np.asarray(whole), given.query_positions[..., None], axis=1))
    for row in range(len(found)):
        end = int(given.query_positions[row, -1]) + 1
        alone = model.apply(
            params, given.tokens[row : row + 1, :end], given.addresses[row : row + 1, :end]
        )
        close(found[row], alone[0, given.query_positions[row]])
        np.testing.assert_array_equal(whole[row, end:], 0)


@pytest.mark.parametrize("mixer", OPTIONS)
def test_gradients_of_the_loss_at_queries_are_finite_and_reach_every_parameter(mixer):
    model, params = prepared(mixer, mixer)

    def loss(params):
        logits = jax.nn.log_softmax(at_queries(model, params, batch()))
        return -jnp.mean(jnp.take_along_axis(logits, batch().targets[..., None], axis=-1))

    value, gradient = jax.value_and_grad(loss)(params)
    assert np.isfinite(value)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        assert np.isfinite(leaf).all() and np.abs(leaf).max() > 0, path


def test_runs_of_several_parameters_at_once():
    """`vmap` over runs, each with a batch of its own made inside."""
    model, params = prepared("bayesian", "bayesian")
    runs = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf]), params)
    keys = jax.random.split(jax.random.key(2), 2)

    @jax.jit
    def run(params, key):
        return at_queries(model, params, sample_collision(TASK, key, 3))

    found = jax.jit(jax.vmap(run))(runs, keys)
    for i in range(2):
        close(found[i], run(jax.tree.map(lambda leaf, i=i: leaf[i], runs), keys[i]))


def test_rematerialisation_changes_no_value():
    model, params = prepared("bayesian", "deltanet")
    remat = AddressModel(config("bayesian", "deltanet", remat=True))
    close(at_queries(remat, params, batch()), at_queries(model, params, batch()))


def test_parameters_and_their_axes():
    model = AddressModel(config("bayesian"))
    shapes = jax.eval_shape(model.init, jax.random.key(0), batch().tokens, batch().addresses)
    # Input 10 x 12; head 8 x 12; norms; SwiGLU; value and out 12 x 8, norm 4; ell^2 12 x 2 + 2.
    counts = parameter_counts(shapes["params"])
    assert counts["input"] == 120 and counts["head"] == 96 and counts["final_norm"] == 12
    assert counts["blocks_0"] == 24 + 3 * 120 + 2 * 96 + 4 + 26 + (96 + 0)
    specs = nn.get_partition_spec(shapes)["params"]
    assert specs["input"]["kernel"] == P(None, "embed")
    assert specs["blocks_0"]["mixer"]["heads"]["value"]["kernel"] == P("embed", "heads")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": np.zeros((6, 17), np.float32)}, ["tokens", "(6, 17)"]),
        ({"tokens": np.zeros((6, 17), np.int32)}, ["tokens", "int32"]),
        ({"addresses": np.zeros((6, 17, 3), np.float32)}, ["addresses", "D=4"]),
        ({"addresses": np.zeros((6, 3, 4), np.float32)}, ["addresses", "T="]),
        ({"query_positions": np.zeros((6, 2), np.float32)}, ["query_positions", "float32"]),
        ({"query_positions": np.zeros((5, 2), np.int32)}, ["query_positions", "B=6"]),
        ({"segment_ids": np.zeros((6, 3), np.int32)}, ["segment_ids", "T="]),
    ],
)
def test_shapes_of_a_call_are_checked(changes, words):
    model, params = prepared("bayesian", "bayesian")
    with pytest.raises(ValueError) as error:
        at_queries(model, params, batch()._replace(**changes))
    for word in words:
        assert word in str(error.value)


def test_what_cannot_use_addresses_raises():
    with pytest.raises(ValueError, match="tie_embeddings"):
        AddressModel(config("bayesian", tie_embeddings=True))
    for mixer in ("attention", "ramnet"):
        model = AddressModel(config(mixer, width=16))
        with pytest.raises(ValueError, match=f"addresses: .*{mixer}"):
            model.init(jax.random.key(0), batch().tokens, batch().addresses)
