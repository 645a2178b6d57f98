"""Parameters that are cast before a loop, not in each of its steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bayesmem.models import LanguageModel, ModelConfig
from bayesmem.models.cast_once import cast_once, dtypes_read
from configs import pretrain

BF16 = jnp.dtype(jnp.bfloat16)


def step_of(mixer, scan_layers):
    """A step of decoding and its parameters, of a small model of bfloat16."""
    config = pretrain.get_config(f"tiny,{mixer}").unlock()
    config.model.update({"width": 64, "mlp_width": 64, "vocab_size": 64, "num_layers": 2})
    config.model.scan_layers = scan_layers
    model = LanguageModel(ModelConfig.from_dict(config.model))
    params = nn.meta.unbox(model.init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32)))
    state = model.init_state(2)
    return lambda params: model.apply(params, jnp.asarray([[3], [5]]), state), params


@pytest.mark.parametrize("scan_layers", [True, False])
@pytest.mark.parametrize("mixer", ["gated_deltanet", "bayesian", "attention", "ramnet"])
def test_a_step_gets_the_same_numbers(mixer, scan_layers, monkeypatch):
    step, params = step_of(mixer, scan_layers)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    cast = cast_once(step, params)
    monkeypatch.undo()
    sizes = {dtype: 0 for dtype in (jnp.float32, jnp.bfloat16)}
    for leaf in jax.tree.leaves(cast):
        sizes[leaf.dtype.type] += leaf.size
    assert sizes[jnp.bfloat16] > sizes[jnp.float32]
    # Operation by operation: compiled as one program, a CPU may leave a rounding out.
    with jax.disable_jit():
        found, wanted = step(cast), step(params)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_gates_and_norms_stay_float32():
    step, params = step_of("gated_deltanet", scan_layers=True)
    read = dtypes_read(step, params)["params"]
    block = read["layers"]["block_0"]
    assert block["mlp"]["up"]["kernel"] == block["mixer"]["output"]["out"]["kernel"] == (BF16,)
    for leaf in (block["mixer"]["decay"]["A_log"], block["mixer_norm"]["scale"]):
        assert leaf == (None,)
    assert set(read["embedding"]["table"]) == {BF16, None}  # tied: looked up, and a product


def _with_derivative(kind):
    function = kind(lambda x: x.astype(BF16))
    if kind is jax.custom_jvp:
        function.defjvp(lambda primals, tangents: (function(*primals), tangents[0].astype(BF16)))
    else:
        function.defvjp(lambda x: (function(x), None), lambda _, g: (g.astype(jnp.float32),))
    return function


def _sum_of_casts(x):
    return jax.lax.scan(lambda sum, _: (sum + x.astype(BF16), 0), BF16.type(0), None, 2)


@pytest.mark.parametrize(
    ("step", "read"),
    [
        (lambda x: x.astype(BF16) * 2, {BF16}),
        (lambda x: jax.jit(lambda x: x.astype(BF16))(x), {BF16}),
        (lambda x: jax.checkpoint(lambda x: x.astype(BF16))(x), {BF16}),
        (_sum_of_casts, {BF16}),
        (_with_derivative(jax.custom_jvp), {BF16}),
        (_with_derivative(jax.custom_vjp), {BF16}),
        (lambda x: x, {None}),
        (lambda x: (x.astype(BF16), x.astype(jnp.float16)), {BF16, jnp.dtype(jnp.float16)}),
        (lambda x: (x.astype(BF16), x + 1), {BF16, None}),
        (lambda x: jax.lax.cond(True, lambda x: x.astype(BF16), lambda x: BF16.type(0), x), {None}),
        (lambda x: jax.lax.scan(lambda c, _: (c + 1, c.astype(BF16)), x, None, 2), {BF16, None}),
        (lambda x: 1, set()),
    ],
)
def test_every_use_counts(step, read):
    assert set(dtypes_read(step, jnp.float32(1.0))) == read


def test_on_a_cpu_nothing_is_cast():
    params = {"x": jnp.float32(1.0)}
    assert cast_once(lambda params: params["x"].astype(BF16), params) is params
