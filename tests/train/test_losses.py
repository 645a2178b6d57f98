"""Losses: the ignore label, query positions, and the empty batch (case C13)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bayesmem.layers.ramnet import imbalance
from bayesmem.models import LanguageModel, ModelConfig
from bayesmem.train.losses import (
    batch_logits,
    mean_of_sums,
    sum_losses,
)
from bayesmem.train.objective import Scoring, batch_objective, batch_sums
from tests.tolerances import assert_close, tolerance
from tests.train.toys import VOCAB, ToyModel, batch_at


def model_and_params():
    model = ToyModel()
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
    return model, nn.meta.unbox(variables)["params"]


def test_equal_logits_cost_log_of_the_vocabulary():
    sums = sum_losses(jnp.zeros((2, 3, 5)), jnp.array([[0, 1, -100], [4, -100, -100]]))
    np.testing.assert_allclose(sums.loss, 3 * np.log(5), **tolerance(jnp.float32))
    assert float(sums.counted) == 3
    assert float(sums.correct) == 1  # argmax of equal logits is id 0


def test_loss_is_the_masked_mean_of_numpy():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(4, 6, VOCAB))
    targets = rng.integers(0, VOCAB, (4, 6))
    targets[rng.random((4, 6)) < 0.4] = -100
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    kept = targets != -100
    wanted = -np.take_along_axis(log_probs, np.where(kept, targets, 0)[..., None], -1)[..., 0]
    means = mean_of_sums(sum_losses(jnp.asarray(logits, jnp.float32), jnp.asarray(targets)))
    np.testing.assert_allclose(means["loss"], wanted[kept].mean(), **tolerance(jnp.float32))
    hits = (logits.argmax(-1) == targets)[kept].mean()
    np.testing.assert_allclose(means["accuracy"], hits, **tolerance(jnp.float32))


def test_all_ignored_gives_zero_loss_and_finite_gradients():
    model, params = model_and_params()
    batch = batch_at(0) | {"targets": np.full((8, 6), -100, np.int32)}

    def loss(params):
        means = mean_of_sums(batch_sums(model, params, batch))
        return means["loss"], means

    grads, means = jax.jit(jax.grad(loss, has_aux=True))(params)
    assert float(means["loss"]) == 0 and float(means["tokens"]) == 0
    for leaf in jax.tree.leaves(grads):
        np.testing.assert_array_equal(leaf, np.zeros(leaf.shape))


def test_ignored_targets_do_not_move_gradients():
    logits = jnp.asarray(np.random.default_rng(2).normal(size=(1, 2, 5)), jnp.float32)
    grad = jax.grad(lambda x: sum_losses(x, jnp.array([[3, -100]])).loss)(logits)
    np.testing.assert_array_equal(grad[0, 1], np.zeros(5))
    assert np.abs(grad[0, 0]).max() > 0


def test_query_positions_give_the_full_logits_at_those_positions():
    model, params = model_and_params()
    batch = batch_at(0)
    run = jax.jit(lambda batch: batch_logits(model, params, batch))
    full = run(batch)
    positions = np.array([[5, 0, 3]] * 4 + [[1, 1, 2]] * 4, np.int32)
    queried = run(batch | {"query_positions": positions})
    assert queried.shape == (8, 3, VOCAB)
    wanted = np.take_along_axis(np.asarray(full), positions[..., None], axis=1)
    np.testing.assert_allclose(queried, wanted, **tolerance(jnp.float32))


def test_a_layers_penalty_is_descended_and_not_reported():
    batch = {name: jnp.asarray(x) for name, x in batch_at(0).items()}
    found = {}
    for weight in (0.0, 0.5):
        options = {"num_heads": 2, "digits": 2, "base": 3, "top_k": 2, "balance": weight}
        config = ModelConfig(VOCAB, 8, 2, ("ramnet",), {"ramnet": options})
        model = LanguageModel(config)
        params = nn.meta.unbox(jax.jit(model.init)(jax.random.key(0), batch["inputs"]))["params"]
        found[weight] = batch_objective(model, params, batch)
        assert_sums_equal(found[weight][1], batch_sums(model, params, batch))
    (without, sums), (penalised, same) = found[0.0], found[0.5]
    assert_sums_equal(sums, same)
    assert float(without) == float(sums.loss) < float(penalised)


def assert_sums_equal(found, wanted):
    for one, two in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, two)


def test_imbalance_is_zero_for_even_use_and_leaves_padding_out():
    even = jnp.zeros((1, 3, 2, 4))
    one_value = even.at[..., 0].set(100.0)
    assert float(imbalance(even, None)) == 0
    np.testing.assert_allclose(imbalance(one_value, None), 3, **tolerance(jnp.float32))
    ids = jnp.array([[0, 0, -1]])
    mixed = even.at[:, 2].set(jnp.nan)
    assert float(imbalance(mixed, ids)) == 0
    for empty, none in ((even[:, :0], None), (even, -jnp.ones((1, 3), jnp.int32))):
        assert float(imbalance(empty, none)) == 0


def scored(scoring, targets):
    """Objective, sums and gradients of a batch of 8 rows of 6 tokens."""
    model, params = model_and_params()
    batch = batch_at(0) | {"targets": targets}

    def objective(params):
        return batch_objective(model, params, batch, scoring=scoring)

    return jax.jit(jax.value_and_grad(objective, has_aux=True))(params)


def test_logits_of_a_few_tokens_at_a_time_change_nothing():
    targets = np.array(batch_at(0)["targets"])
    targets[2, 3:] = targets[5] = -100
    for weight in (0.0, 0.1):
        (wanted, sums), gradients = scored(Scoring(0, weight), targets)
        for tokens in (1, 4, 6, 7):
            (found, own), grads = scored(Scoring(tokens, weight), targets)
            assert_close(found, wanted, jnp.float32)
            jax.tree.map(lambda a, b: assert_close(a, b, jnp.float32), own, sums)
            jax.tree.map(lambda a, b: assert_close(a, b, jnp.float32, "gradient"), grads, gradients)
    (none, sums), grads = scored(Scoring(4, 0.1), np.full_like(targets, -100))
    assert float(none) == 0 and float(sums.counted) == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_z_loss_is_numpys_and_not_part_of_the_sums():
    model, params = model_and_params()
    batch = batch_at(0)
    logits = np.asarray(batch_logits(model, params, batch), np.float64)
    squares = np.log(np.exp(logits).sum(-1)) ** 2
    objective, sums = batch_objective(model, params, batch, scoring=Scoring(z_loss=0.5))
    wanted = float(sums.loss) + 0.5 * squares[batch["targets"] != -100].sum()
    assert_close(objective, wanted, jnp.float32)
    assert_close(sums.loss, batch_sums(model, params, batch).loss, jnp.float32)


def test_logits_of_all_tokens_are_never_held():
    """A program of 4,096 tokens x 32,000 ids needs less than those logits would take."""
    model = LanguageModel(ModelConfig(32_000, 8, 1, ("linear_attention",)))
    tokens = jax.ShapeDtypeStruct((1, 4096), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    batch = {"inputs": tokens, "targets": tokens}
    needed = []
    for size in (0, 128):
        step = jax.jit(
            jax.grad(lambda p, b, s=size: batch_objective(model, p, b, scoring=Scoring(s))[0])
        )
        memory = step.lower(nn.meta.unbox(params), batch).compile().memory_analysis()
        needed.append(memory.temp_size_in_bytes)
    logits = 4 * 4096 * 32_000
    assert needed[0] > logits > 4 * needed[1]
