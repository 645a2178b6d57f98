"""What layers keep of a token for the backward pass: what they are given, not what they make."""

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from bayesmem.layers.attention import Attention
from bayesmem.layers.gates import SigmoidDecay, SigmoidGate, SoftplusGate, StepDecay
from bayesmem.layers.heads import GatedOutput, HeadProjections
from bayesmem.layers.norm import RMSNorm, l2_normalise
from bayesmem.layers.options import HeadLayout, MixerOptions
from bayesmem.layers.short_convolution import ShortConvolution
from bayesmem.layers.swiglu import SwiGLU

WIDTH, HIDDEN, HEADS, DIM = 32, 80, 4, 8
BF16, F32 = 2, 4  # bytes
LAYOUT = HeadLayout(HEADS, HEADS, DIM, DIM, unit_keys=True)
OPTIONS = MixerOptions(conv_size=4, activation="silu", output_gate="silu", dtype=jnp.bfloat16)


def kept(function, *args):
    """Bytes that `function` keeps for the derivative by all of its arguments, arrays or shapes."""
    leaves = jax.tree.leaves(jax.eval_shape(lambda *args: jax.vjp(function, *args)[1], *args))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def shapes(init, *args):
    """Shapes of a module's parameters."""
    return nn.meta.unbox(jax.eval_shape(init, jax.random.key(0), *args))


def kept_a_token(module, *channels, **kwargs):
    """Bytes more that are kept of a row with one more token, parameters left out by that."""

    def of_length(steps):
        args = [jnp.zeros((1, steps, *shape), jnp.bfloat16) for shape in channels]
        params = shapes(lambda *args: module.init(*args, **kwargs), *args)
        return kept(lambda params, *args: module.apply(params, *args, **kwargs), params, *args)

    short, middle, long = of_length(64), of_length(128), of_length(192)
    assert long - middle == middle - short, "grows faster than the length"
    return (long - middle) / 64


@pytest.mark.parametrize("groups", [1, 4])
def test_norm_keeps_its_input(groups):
    assert kept_a_token(RMSNorm(groups=groups), (WIDTH,)) <= BF16 * WIDTH + F32 * groups


def test_l2_normalise_keeps_its_input():
    x = jnp.zeros((1, 64, HEADS, DIM), jnp.bfloat16)
    assert kept(l2_normalise, x) <= BF16 * x.size + F32


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["identity", "silu"])
def test_convolution_keeps_its_input(activation, bias):
    assert kept_a_token(ShortConvolution(4, bias, activation), (WIDTH,)) <= BF16 * WIDTH


def test_convolution_of_documents_keeps_its_input():
    def of_length(steps):
        x, ids = jnp.zeros((1, steps, WIDTH), jnp.bfloat16), jnp.zeros((1, steps), jnp.int32)
        module = ShortConvolution(4)
        params = shapes(module.init, x, None, ids)
        return kept(lambda params, x: module.apply(params, x, None, ids), params, x)

    assert of_length(128) - of_length(64) <= 64 * (BF16 * WIDTH + 4)  # and the numbers of documents


def test_mlp_keeps_its_products():
    module = SwiGLU(WIDTH, HIDDEN, dtype=jnp.bfloat16)
    assert kept_a_token(module, (WIDTH,)) <= BF16 * (WIDTH + 3 * HIDDEN)


def test_projections_keep_what_is_convolved_and_normalised():
    module = HeadProjections(LAYOUT, OPTIONS)
    sizes = WIDTH + sum(LAYOUT.part_sizes) + 2 * HEADS * DIM
    assert kept_a_token(module, (WIDTH,), window=None, segment_ids=None) <= BF16 * sizes


@pytest.mark.parametrize("gate", ["silu", "sigmoid"])
def test_output_keeps_values_gate_and_their_product(gate):
    module = GatedOutput(WIDTH, MixerOptions(output_gate=gate, dtype=jnp.bfloat16))
    sizes = WIDTH + 4 * HEADS * DIM  # x, and y before and after the norm, gate, product
    assert kept_a_token(module, (HEADS, DIM), (WIDTH,)) <= BF16 * sizes + F32 * HEADS


@pytest.mark.parametrize(
    ("module", "own"),
    [
        (SigmoidGate(HEADS), 2 * HEADS),
        (SoftplusGate((HEADS,), 0.5), 3 * HEADS),
        (StepDecay(HEADS), HEADS),
        (StepDecay(HEADS, DIM), HEADS * DIM),
        (StepDecay(HEADS, DIM, rank=4), HEADS * DIM + 4),
        (SigmoidDecay((HEADS, DIM), 4, 16.0), HEADS * DIM + 4),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)
def test_gates_keep_no_wide_copy_of_their_input(module, own):
    assert kept_a_token(module, (WIDTH,)) <= BF16 * WIDTH + F32 * own


def test_attention_keeps_no_scores():
    module = Attention(WIDTH, HEADS)
    assert kept_a_token(module, (WIDTH,)) <= F32 * 16 * WIDTH
