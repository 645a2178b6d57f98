"""The key-value cache of softmax attention, and positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.layers import Attention, RetNet
from tests.tolerances import assert_close

SMALL = Attention(width=8, num_heads=2, max_length=6)
X = np.random.default_rng(0).standard_normal((2, 9, 8)).astype("float32")
PARAMS = SMALL.init(jax.random.key(0), X[:, :6])


def attend(x, state=None, **named):
    return SMALL.apply(PARAMS, jnp.asarray(x), state, **named)


ON_GPU = jax.default_backend() == "gpu"


def test_a_call_longer_than_the_cache_raises():
    for call in (attend, jax.jit(attend)):
        with pytest.raises(ValueError, match="holds 6 tokens, wanted 7"):
            call(X[:, :7])


def test_a_full_cache_raises_outside_of_jit():
    _, state = attend(X[:, :4])
    _, state = attend(X[:, 4:6], state)
    with pytest.raises(ValueError, match="holds 6 tokens, wanted 7"):
        attend(X[:, 6:7], state)


def test_inside_of_jit_tokens_beyond_the_cache_read_nan_and_go_on_doing_so():
    _, state = attend(X[:, :4])
    y, state = jax.jit(attend)(X[:, 4:8], state)
    beyond = np.asarray([False, False, True, True])
    np.testing.assert_array_equal(np.isnan(y), np.broadcast_to(beyond[:, None], y.shape))
    y, state = jax.jit(attend)(X[:, 8:], state)
    assert np.isnan(y).all()
    np.testing.assert_array_equal(state.length, 9)


def test_padding_takes_no_room():
    ids = np.asarray([[-1, 0, 0, -1], [0, 0, 0, 0]], np.int32)
    _, state = attend(X[:, :4], segment_ids=ids)
    np.testing.assert_array_equal(state.length, [2, 4])
    np.testing.assert_array_equal(state.position, [2, 4])
    np.testing.assert_array_equal((state.document >= 0).sum(axis=1), [2, 4])
    y, state = attend(X[:, 4:6], state)
    assert np.isfinite(y).all()
    np.testing.assert_array_equal(state.length, [4, 6])


def test_a_document_that_continues_does_not_see_those_before_it():
    """Ids are only compared within a call: the same id may stand for another document later."""
    ids = np.asarray([[5, 5, 7, 7]] * 2, np.int32)
    _, state = attend(X[:, :4], segment_ids=ids)
    found, _ = attend(X[:, 4:6], state, segment_ids=np.full((2, 2), 5, np.int32))
    wanted, _ = attend(X[:, 2:6])
    assert_close(found, wanted[:, 2:], "float32", length=16)


def test_only_differences_of_positions_matter():
    wanted, _ = attend(X[:, :6])
    found, state = attend(X[:, :6], positions=jnp.tile(jnp.arange(40, 46), (2, 1)))
    np.testing.assert_array_equal(state.position, 46)
    assert_close(found, wanted, "float32", length=64)
    spread, _ = attend(X[:, :6], positions=jnp.tile(3 * jnp.arange(6), (2, 1)))
    assert np.abs(spread - wanted).max() > 1e-3


@pytest.mark.parametrize("layer", [SMALL, RetNet(width=8, num_heads=2)])
def test_explicit_positions_override_those_of_the_state(layer):
    x, params = jnp.asarray(X[:, :6]), layer.init(jax.random.key(1), X[:, :6])
    positions = jnp.tile(jnp.asarray([0, 2, 3, 7, 8, 20]), (2, 1))
    whole, _ = layer.apply(params, x, positions=positions)
    _, state = layer.apply(params, x[:, :4], positions=positions[:, :4])
    np.testing.assert_array_equal(state.position, 8)
    found, _ = layer.apply(params, x[:, 4:], state, positions=positions[:, 4:])
    assert_close(found, whole[:, 4:], "float32", length=64)


def test_retnet_without_rotation_uses_no_positions():
    layer = RetNet(width=8, num_heads=2, rotary=False)
    params = layer.init(jax.random.key(1), X)
    y, state = layer.apply(params, X)
    again, _ = layer.apply(params, X, positions=jnp.full((2, 9), 3))
    np.testing.assert_array_equal(again, y)
    assert state.position is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_kv_heads": 3}, "num_kv_heads: found 3, wanted one that the 4 heads are a multiple"),
        ({"num_kv_heads": 0}, "num_kv_heads: found 0, wanted a whole number >= 1"),
        ({"rope_theta": 0.0}, "rope_theta: found 0.0, wanted a finite number in"),
        ({"rope_theta": "x"}, "rope_theta: found 'x', wanted a finite number in"),
    ],
)
def test_bad_options_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        Attention(16, 4, **changes)


@pytest.mark.skipif(ON_GPU, reason="the kernel runs here")
def test_the_fused_kernel_is_refused_without_a_gpu():
    with pytest.raises(ValueError, match="implementation: found 'cudnn'.*needs a GPU"):
        Attention(width=16, num_heads=2, implementation="cudnn", dtype=jnp.bfloat16)
    with pytest.raises(ValueError, match="implementation: found 'flash', wanted one of"):
        Attention(width=16, num_heads=2, implementation="flash")


@pytest.mark.skipif(not ON_GPU, reason="cuDNN's kernel needs a GPU")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("steps", [256, 301])
def test_the_fused_kernel_attends_as_the_weights_in_full_do(steps, packed):
    """Values, caches and gradients, beside float32; two runs are equal to the last bit."""
    draw = np.random.default_rng(3)
    x = draw.standard_normal((2, steps, 128)).astype("float32")
    weight = draw.standard_normal(x.shape).astype("float32")
    ids = np.sort(draw.integers(0, 4, (2, steps)), axis=1).astype(np.int32)
    ids[1, -40:] = -1
    layers = {
        "exact": Attention(width=128, num_heads=4, num_kv_heads=2, max_length=512),
        **{
            name: Attention(128, 4, 2, max_length=512, implementation=name, dtype=jnp.bfloat16)
            for name in ("xla", "cudnn")
        },
    }
    params = layers["exact"].init(jax.random.key(1), x)

    def run(name):
        def loss(params, x):
            y, cache = layers[name].apply(params, x, segment_ids=ids if packed else None)
            return jnp.sum(y.astype(jnp.float32) * weight), (y, cache)

        return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(params, x)

    exact, plain, fused, again = map(run, ("exact", "xla", "cudnn", "cudnn"))
    jax.tree.map(np.testing.assert_array_equal, fused, again)
    for wanted, near, found in zip(*map(jax.tree.leaves, (exact, plain, fused)), strict=True):
        wanted, near, found = (np.asarray(leaf, np.float64) for leaf in (wanted, near, found))
        error = np.linalg.norm(found - wanted)
        assert error <= 2 * np.linalg.norm(near - wanted)
