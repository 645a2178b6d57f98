"""What the phases descend: the divergence (case C13), sums, nothing to count, and parts of rows."""

import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from bayesmem.distill.objectives import divergence, joint_objective, layer_objective
from bayesmem.distill.settings import JointSettings
from bayesmem.distill.streams import match_streams
from bayesmem.models import LanguageModel
from bayesmem.train.objective import sum_in_parts
from bayesmem.train.optimizer import make_optimizer, make_schedule
from bayesmem.train.settings import MeshSettings, OptimizerSettings
from bayesmem.train.sharding import make_mesh, put_batch
from bayesmem.train.step import TrainState, make_train_step
from bayesmem.train.trained_part import merge, split
from tests.distill.cases import QUICK_BUILD, STEPS, SUMMED, VOCAB, batch, case, flat
from tests.tolerances import assert_close, tolerance


def numpy_divergence(teacher, student, temperature):
    p, q = (np.exp(np.float64(x) / temperature) for x in (teacher, student))
    p, q = (x / x.sum(-1, keepdims=True) for x in (p, q))
    return (p * np.log(p / q)).sum(-1)


def test_padded_ids_are_cut_before_the_divergence():
    teacher, student = jnp.array([2.0, 1.0, 0.0, 5.0]), jnp.array([2.0, 1.0, 0.0])
    assert float(divergence(teacher[:3], student)) == 0
    assert_close(jax.grad(divergence, 1)(teacher[:3], student), np.zeros(3), "float32")


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_divergence_is_numpys_and_moves_the_student_alone(temperature):
    rng = np.random.default_rng(0)
    teacher, student = rng.normal(size=(2, 3, 7, VOCAB)).astype("float32") * 3
    found = divergence(teacher, student, temperature)
    assert_close(found, numpy_divergence(teacher, student, temperature), "float32", length=VOCAB)

    def total(*logits):
        return jnp.sum(divergence(*logits, temperature))

    theirs, ours = jax.grad(total, (0, 1))(jnp.asarray(teacher), jnp.asarray(student))
    np.testing.assert_array_equal(theirs, np.zeros_like(theirs))
    p, q = (jax.nn.softmax(x / temperature) for x in (teacher, student))
    assert_close(ours, (q - p) / temperature, "float32", "gradient", VOCAB)


@pytest.mark.parametrize("size", [1e4, 1e6])
def test_large_logits_are_finite(size):
    logits = size * jnp.array([1.0, -1.0, 0.5]), size * jnp.array([-1.0, 1.0, 0.5])
    value, gradient = jax.value_and_grad(divergence, 1)(*logits)
    np.testing.assert_allclose(value, 2 * size, **tolerance("float32"))
    assert np.isfinite(gradient).all()


JOINT = JointSettings(temperature=2.0, kl_weight=0.7, boundary_weight=0.3)


def objective(own, name, tokens=0):
    if name == "phase_a":
        return layer_objective(own.pair)
    # An id less than the model has: the tokenizer may have fewer.
    return joint_objective(own.pair, JOINT, vocab_size=VOCAB - 1, tokens=tokens)


def descended(own, name, rows, tokens=0):
    """What is descended, the sums, and the gradients by name."""
    descend = objective(own, name, tokens).descend
    part, rest = split(own.student, own.pair.trains)

    def run(part, rows):
        return descend(merge(part, rest), rows, jax.random.key(0), own.given)

    (value, sums), grads = jax.jit(
        jax.value_and_grad(run, has_aux=True), compiler_options=QUICK_BUILD
    )(part, rows)
    return value, sums, flat(grads)


def test_phase_b_by_its_definition():
    own, rows = case("deltanet", anywhere=True), batch()
    sums = jax.jit(objective(own, "phase_b").measure)(own.student, rows, own.given)
    means = objective(own, "phase_b").means(sums)
    match = jax.jit(partial(match_streams, own.pair), compiler_options=QUICK_BUILD)
    teacher, student, matches = match(own.student, own.given, rows)
    model = LanguageModel(own.pair.student)
    wanted, found = (
        np.asarray(model.apply({"params": own.student}, h, method="logits"), np.float64)
        for h in (teacher, student)
    )
    counted = np.asarray(rows["targets"]) != -100
    apart = numpy_divergence(wanted[..., :-1], found[..., :-1], 2.0)[counted].mean()
    assert_close(means["divergence"], apart, "float32", length=SUMMED)
    log_q = found - np.log(np.exp(found).sum(-1, keepdims=True))
    safe = np.where(counted, rows["targets"], 0)
    picked = -np.take_along_axis(log_q, safe[..., None], -1)[..., 0]
    assert_close(means["cross_entropy"], picked[counted].mean(), "float32", length=SUMMED)
    hits = (found.argmax(-1) == safe)[counted].mean()
    assert_close(means["accuracy"], hits, "float32")
    error, total, square = (np.asarray(x, np.float64) for x in matches)
    elements = (np.asarray(rows["segment_ids"]) >= 0).sum() * own.teacher.width
    boundary = error / (square - total**2 / elements)
    names = [f"boundary_layer_{layer}" for layer in (1, 3)]
    assert_close([means[name] for name in names], boundary, "float32", length=SUMMED)
    loss = 0.7 * 4 * apart + 0.3 * boundary.mean()
    assert_close(means["loss"], loss, "float32", length=SUMMED)
    assert means["tokens"] == counted.sum()


def test_phase_a_by_its_definition():
    own, rows = case("deltanet", anywhere=True), batch()
    value, sums, _ = descended(own, "phase_a", rows)
    means = objective(own, "phase_a").means(sums)
    errors = np.asarray(sums.matches.error / sums.matches.square, np.float64)
    assert_close([means["nmse_layer_1"], means["nmse_layer_3"]], errors, "float32")
    assert_close(means["loss"], errors.mean(), "float32")
    tokens = (np.asarray(rows["segment_ids"]) >= 0).sum()
    assert means["tokens"] == tokens
    assert_close(value, errors.sum() * tokens, "float32")


def test_logits_of_a_few_tokens_at_a_time_change_nothing():
    own, rows = case("deltanet", anywhere=True), batch()
    value, sums, grads = descended(own, "phase_b", rows)
    found, own_sums, own_grads = descended(own, "phase_b", rows, tokens=5)
    assert_close(found, value, "float32", length=STEPS)
    jax.tree.map(lambda a, b: assert_close(a, b, "float32", length=STEPS), own_sums, sums)
    for name, leaf in grads.items():
        assert_close(own_grads[name], leaf, "float32", "gradient", SUMMED)


def test_sums_in_parts_of_several_arrays():
    rng = np.random.default_rng(0)
    rows = [jnp.asarray(rng.normal(size=(2, 7, 3)), jnp.float32) for _ in range(2)]
    targets = jnp.asarray(rng.integers(0, 3, (2, 7)))

    def score(rows, targets):
        product = jnp.sum(rows[0] * rows[1], axis=-1)
        return {"a": jnp.sum(product, where=targets != -100), "n": jnp.sum(targets != -100)}

    wanted = score(rows, targets)
    for size in (0, 1, 3, 7, 9):
        found = sum_in_parts(score, rows, targets, size)
        assert_close(found["a"], wanted["a"], "float32", length=7)
        assert int(found["n"]) == 14


NOTHING = {
    "ignored": {"targets": jnp.full((4, STEPS), -100)},
    "padding": {"targets": jnp.full((4, STEPS), -100), "segment_ids": jnp.full((4, STEPS), -1)},
}


def four_rows():
    return jax.tree.map(lambda x: jnp.concatenate([x, x[:1]]), batch())


SETTINGS = OptimizerSettings(learning_rate=0.1, warmup_steps=0, weight_decay=0.0)


def first_state(own):
    params, zero = own.student, jnp.zeros((), jnp.int32)
    opt_state = make_optimizer(SETTINGS, 4).init(split(params, own.pair.trains)[0])
    state = TrainState(zero, params, opt_state, jax.random.key(0), zero)
    here = NamedSharding(make_mesh(MeshSettings()), PartitionSpec())
    # A step donates its state: the parameters here are other tests' too.
    return jax.tree.map(lambda x: jax.device_put(jnp.copy(x), here), state)


@functools.cache
def train_step(name, accumulation=1):
    own = case("deltanet", anywhere=True)
    return make_train_step(
        objective(own, name),
        make_optimizer(SETTINGS, 4),
        make_schedule(SETTINGS, 4),
        jax.tree.map(lambda x: x.sharding, first_state(own)),
        grad_accumulation=accumulation,
        trains=own.pair.trains,
    )


def stepped(rows, name, accumulation=1):
    """Parameters after a step, and its metrics."""
    own, mesh = case("deltanet", anywhere=True), make_mesh(MeshSettings())
    step = train_step(name, accumulation)
    state, metrics = step(first_state(own), put_batch(mesh, rows), own.given)
    return state.params, metrics


@pytest.mark.parametrize("name", ["phase_a", "phase_b"])
@pytest.mark.parametrize("kind", NOTHING)
def test_a_batch_with_nothing_to_count(name, kind):
    params, metrics = stepped(four_rows() | NOTHING[kind], name)
    assert all(np.isfinite(value) for value in metrics.values()) and metrics["skipped"] == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
    if name == "phase_b" or kind == "padding":
        assert metrics["loss"] == 0 and metrics["tokens"] == 0 and metrics["grad_norm"] == 0


def test_microbatches_add_up():
    """The divergence is a sum over targets: it does not matter how they are parted."""
    own, found = case("deltanet", anywhere=True), []
    for accumulation in (1, 2):
        params, metrics = stepped(four_rows(), "phase_b", accumulation)
        names = ("divergence", "cross_entropy", "accuracy", "tokens")
        found.append({name: metrics[name] for name in names})
        for name, leaf in flat(params).items():
            same = np.array_equal(leaf, flat(own.student)[name])
            assert same != own.pair.trains(name), name
    jax.tree.map(lambda a, b: assert_close(a, b, "float32", length=SUMMED), *found)
