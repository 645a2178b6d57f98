"""The language model: its tables, precision, sizes, parameter axes and checks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec as P

from bayesmem.models import LanguageModel, parameter_counts
from tests.models.cases import (
    QUICK_BUILD,
    STEPS,
    SUMMED,
    TOKENS,
    VOCAB,
    close,
    config,
    parameters,
    run,
)
from tests.tolerances import assert_close


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
        lambda one, other: assert_close(one, other, "float32", "gradient", SUMMED), *values
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
