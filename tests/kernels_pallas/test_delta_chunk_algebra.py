"""The algebra of the delta rule's kernels: values and hand-written gradients, in plain JAX."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.ops import arguments
from bayesmem.ops.delta.chunked import chunked
from bayesmem.ops.delta.reference import recurrent
from bayesmem.ops.delta.types import DeltaInputs
from kernels_pallas.delta_chunk import algebra, op
from kernels_pallas.kalman_chunk.config import Config
from tests import oracles
from tests.ops import cases
from tests.tolerances import assert_close

PLAIN = Config(length=16, kernel=False)
STEPS = 37  # two chunks and a part of one
KINDS = ("identity", "scalar", "strong", "stronger", "idle", "packed")


def case_of(kind):
    """A case of the op for each thing that may go wrong."""
    decay = "identity" if kind == "identity" else "scalar"
    sizes = {"dim": 8, "value_dim": 6, "heads": 2, "key_heads": 2, "batch": 2}
    case = cases.memory(3, STEPS, "beta", decay, packed=kind == "packed", **sizes)
    rng = np.random.default_rng(8)
    if kind in ("strong", "stronger"):
        strength = -20.0 if kind == "strong" else -100.0
        hit = rng.random(case["log_decay"].shape) < 0.3
        hit[:, 16:32] = True  # a whole chunk
        case["log_decay"] = np.where(hit, strength, case["log_decay"])
    if kind == "idle":
        case["beta"] = np.where(rng.random(case["beta"].shape) < 0.3, 0.0, case["beta"])
    return case


def prepared(case, dtype=None):
    """`DeltaInputs` of a case, as the op hands them to a form."""
    given = {name: jnp.asarray(x, dtype) for name, x in case.items() if name != "segment_ids"}
    segment_ids = case.get("segment_ids")
    valid, starts = arguments.documents(None if segment_ids is None else jnp.asarray(segment_ids))
    sizes = arguments.sequence_sizes(given["q"], given["k"], given["v"])
    dtype = given["state"].dtype
    spread = functools.partial(arguments.spread, heads=sizes["H"], dtype=dtype, valid=valid)
    return DeltaInputs(
        **{name: spread(given[name]) for name in ("q", "k", "v", "beta")},
        log_decay=arguments.decay_channels(given.get("log_decay"), sizes, dtype, valid),
        starts=starts,
        memory=given["state"],
    )


def differentiable(inputs):
    return {n: x for n, x in inputs._asdict().items() if x is not None and n != "starts"}


def weighted_loss(form, inputs, dtype=None):
    """A function of what may vary: the outputs of a form, with random weights, summed."""
    rng = np.random.default_rng(4)
    weights = [jnp.asarray(rng.standard_normal(x.shape), dtype) for x in (inputs.v, inputs.memory)]

    def loss(varied):
        found = form(inputs._replace(**varied))
        return sum(jnp.sum(w.astype(x.dtype) * x) for w, x in zip(weights, found, strict=True))

    return loss


def plain(inputs, config=PLAIN):
    return op.run_tokens(inputs, config)


@pytest.mark.parametrize("kind", KINDS)
def test_values_equal_the_oracle(x64, kind):
    case = case_of(kind)
    found = jax.jit(plain)(prepared(case))
    for one, other in zip(found, oracles.delta(**case), strict=True):
        assert_close(one, other, np.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_those_of_the_recurrence(x64, kind):
    inputs = prepared(case_of(kind))
    varied = differentiable(inputs)
    forms = (lambda x: recurrent(x, 0), plain)
    right, found = (jax.jit(jax.grad(weighted_loss(f, inputs)))(varied) for f in forms)
    for name in varied:
        assert_close(found[name], right[name], np.float64, "gradient")


def test_reverse_equals_autodiff_of_the_same_forward(x64):
    tokens, vectors, memory = op.cut(prepared(case_of("packed")), PLAIN)

    def loss(varied, forward):
        rng = np.random.default_rng(5)
        return sum(jnp.sum(rng.standard_normal(x.shape) * x) for x in forward(*varied))

    forms = (lambda *a: op._forward(*a, PLAIN)[0], lambda *a: op.pass_chunks(*a, PLAIN))
    varied = tokens, vectors, memory
    right, found = (jax.jit(jax.grad(lambda x, f=f: loss(x, f)))(varied) for f in forms)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
        assert_close(one, other, np.float64, "gradient")


@pytest.mark.parametrize("kind", ("strong", "idle", "packed"))
def test_float32_stays_finite_and_close(kind):
    inputs = prepared(case_of(kind), jnp.float32)
    varied = differentiable(inputs)
    for name, gradient in jax.jit(jax.grad(weighted_loss(plain, inputs)))(varied).items():
        assert np.isfinite(gradient).all(), name
    found, wanted = jax.jit(plain)(inputs), jax.jit(chunked, static_argnums=1)(inputs, 16)
    for one, other in zip(found, wanted, strict=True):
        assert_close(one, other, np.float32, length=STEPS * 8)


def test_chunk_length_does_not_matter(x64):
    inputs = prepared(case_of("scalar"))
    run = jax.jit(plain, static_argnums=1)
    first, second = (run(inputs, Config(length=n, kernel=False)) for n in (8, 64))
    for one, other in zip(first, second, strict=True):
        assert_close(one, other, np.float64)


def test_errors_are_beta_times_those_before_it(x64):
    tokens, vectors, _ = op.cut(prepared(case_of("strong")), PLAIN)
    precision = jax.lax.Precision.HIGHEST
    terms = algebra.expand(tokens, vectors, precision)
    inverse = algebra.factors(terms, precision).inverse[:, :, :, 0]
    lower = jnp.tril(terms.ratio * (terms.keys @ terms.keys.swapaxes(-1, -2)), -1)
    beta = terms.noise[..., None]
    found = (jnp.eye(PLAIN.length) + beta * lower) @ inverse
    assert_close(found, beta * np.eye(PLAIN.length), np.float64)
