"""Blocks run by a scan over stacked parameters are the blocks one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec as P

from bayesmem.models import AddressModel, LanguageModel, stack_params, unroll_params
from bayesmem.models.sizes import model_sizes
from bayesmem.train.optimizer import decayed
from tests.models.cases import LENGTH, MODELS, QUICK_BUILD, SUMMED, TOKENS, config
from tests.tolerances import assert_close

TURNS = 2


def pair(name, **changes):
    """The scanned model, the same with blocks one by one, and parameters of the first."""
    layers = TURNS * len(MODELS[name])
    models = [
        LanguageModel(config(name, num_layers=layers, scan_layers=scan, **changes))
        for scan in (True, False)
    ]
    params = nn.meta.unbox(jax.jit(models[0].init)(jax.random.key(1), TOKENS))["params"]
    return *models, params


@pytest.mark.parametrize("name", ["bayesian", "hybrid", "ramnet"])
def test_values_gradients_and_decoding_are_the_same(name):
    scanned, plain, params = pair(name)
    apart = unroll_params(params)
    own = nn.meta.unbox(jax.eval_shape(plain.init, jax.random.key(0), TOKENS))["params"]
    assert jax.tree.structure(own) == jax.tree.structure(apart)

    def loss(model, params):
        variables, sown = {"params": params}, {"mutable": ["losses"]}
        (logits, _), found = model.apply(variables, TOKENS, **sown)
        return jnp.square(logits).mean() + sum(map(jnp.sum, jax.tree.leaves(found)))

    own, wanted = (
        jax.jit(jax.value_and_grad(lambda p, m=m: loss(m, p)), compiler_options=QUICK_BUILD)(p)
        for m, p in ((scanned, params), (plain, apart))
    )
    assert_close(own[0], wanted[0], "float32", length=LENGTH)
    jax.tree.map(
        lambda a, b: assert_close(a, b, "float32", "gradient", SUMMED),
        unroll_params(own[1]),
        wanted[1],
    )

    whole = jax.jit(plain.apply)({"params": apart}, TOKENS)[0]
    state = scanned.init_state(TOKENS.shape[0])
    step = jax.jit(lambda t, s: scanned.apply({"params": params}, t, s))
    found = []
    for part in (TOKENS[:, :5], TOKENS[:, 5:6], TOKENS[:, 6:]):
        logits, after = step(part, state)
        assert jax.tree.structure(after) == jax.tree.structure(state)
        state = after
        found.append(logits)
    assert_close(np.concatenate(found, axis=1), whole, "float32", length=LENGTH)


def test_parameters_stack_and_unstack():
    _, _, params = pair("hybrid")
    again = stack_params(unroll_params(params), 3)
    jax.tree.map(np.testing.assert_array_equal, again, params)


def test_axes_decay_and_sizes_are_those_of_the_blocks():
    scanned, plain, _ = pair("hybrid")
    boxed = jax.eval_shape(scanned.init, jax.random.key(0), TOKENS)["params"]
    specs = nn.get_partition_spec(boxed)["layers"]
    assert specs["block_0"]["mixer"]["heads"]["query"]["kernel"] == P(None, "embed", "heads")
    own = decayed(nn.meta.unbox(boxed))
    shapes = nn.meta.unbox(jax.eval_shape(plain.init, jax.random.key(0), TOKENS))["params"]
    wanted = decayed(shapes)
    for place in range(3):
        assert own["layers"][f"block_{place}"] == wanted[f"blocks_{place}"]
    assert model_sizes(scanned.config) == model_sizes(plain.config)


@pytest.mark.parametrize("saves", ["nothing", "projections", "products"])
def test_what_is_saved_changes_no_value(saves):
    scanned, plain, params = pair("bayesian", remat=True, remat_saves=saves)
    _, kept, _ = pair("bayesian")
    apart = unroll_params(params)
    grads = [
        jax.jit(jax.grad(lambda p, m=m: jnp.square(m.apply({"params": p}, TOKENS)[0]).mean()))(p)
        for m, p in ((scanned, params), (plain, apart), (kept, apart))
    ]
    for other in (unroll_params(grads[0]), grads[1]):
        jax.tree.map(
            lambda a, b: assert_close(a, b, "float32", "gradient", SUMMED), other, grads[2]
        )


def test_what_cannot_be_scanned_is_said():
    with pytest.raises(ValueError, match="num_layers: found 4, wanted a multiple of the 3 mixers"):
        config("hybrid", num_layers=4, scan_layers=True)
    with pytest.raises(ValueError, match="remat_saves.*banana"):
        config("hybrid", remat_saves="banana")
    with pytest.raises(ValueError, match="scan_layers: found True"):
        AddressModel(config("bayesian", scan_layers=True))
