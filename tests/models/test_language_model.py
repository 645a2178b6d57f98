"""The language model: one function for training, prefill and decoding; padding (C8); sizes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec as P

from bayesmem.models import LanguageModel, ModelConfig, parameter_counts
from tests.tolerances import assert_close

QUICK_BUILD = {"xla_backend_optimization_level": 0}
VOCAB, STEPS, REAL = 13, 16, 10
OPTIONS = {
    "bayesian": {"num_heads": 2, "transition": "scalar", "chunk_size": 8},
    "attention": {"num_heads": 2, "num_kv_heads": 1},
    "retnet": {"num_heads": 2, "chunk_size": 8},
    "gated_deltanet": {"num_heads": 2, "num_value_heads": 4, "head_dim": 4, "chunk_size": 8},
}
MODELS = {
    "bayesian": ("bayesian",),
    "gated_deltanet": ("gated_deltanet",),
    "hybrid": ("bayesian", "attention", "retnet"),
}
LENGTH = STEPS * 16
each_model = pytest.mark.parametrize("name", MODELS)
TOKENS = np.random.default_rng(0).integers(0, VOCAB - 1, (2, STEPS)).astype(np.int32)
PAD = VOCAB - 1
"""A token that stands for padding only, with an embedding like any other."""


def config(name="bayesian", **changes):
    mixers = MODELS[name]
    values = {
        "vocab_size": VOCAB,
        "width": 16,
        "num_layers": max(2, len(mixers)),
        "mixers": mixers,
        "mixer_options": {mixer: OPTIONS[mixer] for mixer in mixers},
        "mlp_width": 24,
        "max_length": 24,
        "vocab_multiple": 8,
    }
    return ModelConfig(**values | changes)


@functools.cache
def parameters(name):
    init = jax.jit(LanguageModel(config(name)).init, compiler_options=QUICK_BUILD)
    params = nn.meta.unbox(init(jax.random.key(0), TOKENS[:, :1]))
    # Embeddings of size 1, so that the norms are not what makes errors small.
    table = params["params"]["embedding"]["table"]
    params["params"]["embedding"]["table"] = table / table.std()
    return params


@functools.cache
def _call(name):
    model = LanguageModel(config(name))
    return jax.jit(
        lambda params, tokens, state, ids: model.apply(params, tokens, state, segment_ids=ids),
        compiler_options=QUICK_BUILD,
    )


def run(name, tokens, state=None, ids=None, params=None):
    params = parameters(name) if params is None else params
    return _call(name)(params, tokens, state, None if ids is None else np.asarray(ids, np.int32))


def close(found, wanted):
    assert_close(found, wanted, "float32", length=LENGTH)


@each_model
@pytest.mark.parametrize("pieces", [[7, 9], [STEPS - 3, 1, 1, 1]])
def test_prefill_in_pieces_and_decoding_equal_the_training_pass(name, pieces):
    whole, last = run(name, TOKENS)
    state, start, parts = LanguageModel(config(name)).init_state(2), 0, []
    for length in pieces:
        logits, state = run(name, TOKENS[:, start : start + length], state)
        parts.append(logits)
        start += length
    close(np.concatenate(parts, axis=1), whole)
    assert jax.tree.structure(state) == jax.tree.structure(last)
    jax.tree.map(close, state, last)


@each_model
def test_packed_documents_are_separate_documents(name):
    ids = np.tile(np.repeat([0, 1, 2], [5, 1, 10]), (2, 1))
    packed, state = run(name, TOKENS, None, ids)
    for part in (slice(0, 5), slice(5, 6), slice(6, 16)):
        alone, end = run(name, TOKENS[:, part])
        close(packed[:, part], alone)
    np.testing.assert_array_equal(state.position, end.position)
    following, _ = run(name, TOKENS[:, :1], state)
    wanted, _ = run(name, TOKENS[:, :1], end)
    close(following, wanted)


def padded():
    """The first REAL tokens of row 0, left, right and in the middle of padding."""
    tokens, ids = np.full((3, STEPS), PAD, np.int32), np.full((3, STEPS), -1, np.int32)
    places = np.arange(REAL) + np.asarray([[STEPS - REAL], [0], [3]])
    for row, place in enumerate(places):
        tokens[row, place], ids[row, place] = TOKENS[0, :REAL], 0
    return tokens, ids, places


@each_model
def test_padding_is_as_if_it_were_not_there(name):
    """Even where the embedding of the padding token holds NaN (the head's rows are others)."""
    tokens, ids, places = padded()
    wanted, wanted_state = run(name, np.tile(TOKENS[:1, :REAL], (3, 1)))
    params = jax.tree.map(lambda leaf: leaf, parameters(name))
    table = params["params"]["embedding"]["table"]
    assert np.abs(table[PAD]).max() > 0
    for pad_embedding in (table[PAD], np.nan):
        params["params"]["embedding"]["table"] = table.at[PAD].set(pad_embedding)
        logits, state = run(name, tokens, None, ids, params)
        close(np.take_along_axis(np.asarray(logits), places[..., None], axis=1), wanted)
        np.testing.assert_array_equal(np.asarray(logits)[ids < 0], 0)
        jax.tree.map(close, state, wanted_state)


@each_model
def test_padding_takes_and_gives_no_gradient(name):
    model, (tokens, ids, places) = LanguageModel(config(name)), padded()
    rows = np.tile(TOKENS[:1, :REAL], (3, 1))
    weights = np.random.default_rng(1).standard_normal((3, REAL, VOCAB)).astype("float32")
    spread = np.ones((3, STEPS, VOCAB), np.float32)
    np.put_along_axis(spread, places[..., None], weights, axis=1)

    def loss(params, tokens, ids, weights):
        return jnp.sum(model.apply(params, tokens, segment_ids=ids)[0] * weights)

    gradient = jax.jit(jax.grad(loss), compiler_options=QUICK_BUILD)
    wanted = gradient(parameters(name), rows, None, weights)
    params = jax.tree.map(lambda leaf: leaf, parameters(name))
    embedding = params["params"]["embedding"]
    embedding["table"] = embedding["table"].at[PAD].set(jnp.nan)
    found = gradient(params, tokens, ids, spread)
    np.testing.assert_array_equal(found["params"]["embedding"]["table"][PAD], 0)

    def equal(path, one, other):
        assert_close(one, other, "float32", "gradient", 3 * LENGTH), path

    jax.tree_util.tree_map_with_path(equal, found, wanted)


def test_tied_embeddings_share_the_table():
    model = LanguageModel(config(tie_embeddings=True))
    (logits, _), params = jax.jit(model.init_with_output)(jax.random.key(0), TOKENS)
    params = nn.meta.unbox(params)
    assert "head" not in params["params"]
    hidden, _ = model.apply(params, TOKENS, method="hidden_states")
    close(logits, hidden @ params["params"]["embedding"]["table"][:VOCAB].T)


def test_logits_of_padded_rows_are_cut_and_take_no_gradient():
    model, params = LanguageModel(config()), parameters("bayesian")
    assert params["params"]["head"]["table"].shape == (16, 16)
    hidden, _ = model.apply(params, TOKENS, method="hidden_states")
    logits = model.apply(params, hidden[:, 3], method="logits")
    assert logits.shape == (2, VOCAB) and logits.dtype == jnp.float32
    close(logits, run("bayesian", TOKENS)[0][:, 3])
    gradient = jax.grad(lambda p: model.apply(p, hidden, method="logits").sum())(params)
    table = gradient["params"]["head"]["table"]
    np.testing.assert_array_equal(table[VOCAB:], 0)
    assert np.abs(table[:VOCAB]).min() > 0


def test_rematerialisation_changes_no_value_and_no_parameter_name():
    plain, remat = LanguageModel(config("hybrid")), LanguageModel(config("hybrid", remat=True))
    params = parameters("hybrid")
    values = [
        jax.jit(
            jax.value_and_grad(lambda p, m=model: jnp.square(m.apply(p, TOKENS)[0]).mean()),
            compiler_options=QUICK_BUILD,
        )(params)
        for model in (plain, remat)
    ]
    jax.tree.map(
        lambda one, other: assert_close(one, other, "float32", "gradient", LENGTH), *values
    )
    shapes = [jax.eval_shape(m.init, jax.random.key(0), TOKENS) for m in (plain, remat)]
    assert jax.tree.structure(shapes[0]) == jax.tree.structure(shapes[1])


def test_bfloat16_model_keeps_float32_parameters_logits_and_memory():
    model = LanguageModel(config("hybrid", dtype="bfloat16"))
    (logits, state), params = jax.eval_shape(model.init_with_output, jax.random.key(0), TOKENS)
    assert logits.dtype == jnp.float32
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {"float32"}
    assert state.layers[0].memory.cov.dtype == jnp.float32
    assert state.layers[1].key.dtype == jnp.bfloat16
    apply = jax.jit(model.apply, compiler_options=QUICK_BUILD)
    assert_close(
        apply(parameters("hybrid"), TOKENS)[0], run("hybrid", TOKENS)[0], "bfloat16", length=STEPS
    )


@pytest.mark.parametrize(
    ("name", "changes", "total"),
    [
        # 2 tables of 16 x 16; final norm 16; a block: 2 norms of 16, SwiGLU 3 x 16 x 24, mixer.
        ("bayesian", {}, 2 * 256 + 16 + 2 * (32 + 1152 + 5 * 256 + 8 + 3 * 34 + 2)),
        ("bayesian", {"tie_embeddings": True, "mlp_width": 0}, 256 + 16 + 2 * (16 + 1392)),
        ("hybrid", {"num_layers": 4}, 2 * 256 + 16 + 4 * 1184 + 2 * 1392 + 768 + 1288),
    ],
)
def test_parameter_counts(name, changes, total):
    model = LanguageModel(config(name, **changes))
    params = jax.eval_shape(model.init, jax.random.key(0), TOKENS)["params"]
    counts = parameter_counts(params)
    assert counts["total"] == total == sum(counts.values()) - counts["total"]
    assert counts["embedding"] == 256
    deeper = parameter_counts(params, depth=2)
    assert deeper["total"] == total and "blocks_0/mixer" in deeper


def test_parameters_carry_logical_axes():
    params = jax.eval_shape(LanguageModel(config("hybrid")).init, jax.random.key(0), TOKENS)
    specs = nn.get_partition_spec(params)["params"]
    assert specs["embedding"]["table"] == P("vocab", "embed")
    assert specs["blocks_0"]["mixer"]["heads"]["query"]["kernel"] == P("embed", "heads")
    assert specs["blocks_1"]["mixer"]["out"]["kernel"] == P("heads", "embed")
    assert specs["blocks_2"]["mlp"]["down"]["kernel"] == P("mlp", "embed")
    for path, leaf in jax.tree_util.tree_leaves_with_path(
        params, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)
    ):
        assert isinstance(leaf, nn.LogicallyPartitioned), path
        assert len(leaf.names) == leaf.value.ndim, path


@pytest.mark.parametrize(
    ("tokens", "named", "message"),
    [
        (TOKENS[0], {}, "tokens: "),
        (TOKENS.astype(np.float32), {}, "tokens: "),
        (TOKENS, {"segment_ids": np.zeros((2, 3), np.int32)}, "segment_ids: "),
        (TOKENS, {"positions": np.zeros((1, STEPS), np.int32)}, "positions: "),
    ],
)
def test_shapes_of_a_call_are_checked(tokens, named, message):
    with pytest.raises(ValueError, match=message):
        LanguageModel(config()).apply(parameters("bayesian"), tokens, **named)
