"""The optimizer against AdamW written out in NumPy, its schedule, and what it decays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.train.optimizer import decayed, make_optimizer, make_schedule
from bayesmem.train.settings import OptimizerSettings
from tests.tolerances import tolerance


def settings(**changes):
    values = {
        "learning_rate": 0.1, "warmup_steps": 2, "weight_decay": 0.3, "beta1": 0.8, "beta2": 0.9,
        "clip_norm": 0.5, "end_fraction": 0.2, "schedule": "cosine",
    }  # fmt: skip
    return OptimizerSettings(**(values | changes))


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        ("cosine", [0.0, 0.05, 0.1, 0.06, 0.02, 0.02]),
        ("linear", [0.0, 0.05, 0.1, 0.06, 0.02, 0.02]),
        ("constant", [0.0, 0.05, 0.1, 0.1, 0.1, 0.1]),
    ],
)
def test_schedule_values(schedule, wanted):
    rate = make_schedule(settings(schedule=schedule), 6)
    found = [float(rate(step)) for step in (0, 1, 2, 4, 6, 9)]
    np.testing.assert_allclose(found, wanted, **tolerance(jnp.float32))


def test_cosine_is_not_linear_and_no_warmup_starts_at_the_peak():
    rate = make_schedule(settings(warmup_steps=0, end_fraction=0.0), 4)
    wanted = [0.05 * (1 + np.cos(np.pi * step / 4)) for step in range(5)]
    found = [float(rate(step)) for step in range(5)]
    np.testing.assert_allclose(found, wanted, **tolerance(jnp.float32))


def test_total_steps_must_exceed_the_warmup():
    with pytest.raises(ValueError, match="total_steps.*2.*warmup_steps = 2"):
        make_schedule(settings(), 2)


def adamw_oracle(params, grads_of_steps, s, rates):
    moments = {name: (0.0, 0.0) for name in params}
    for count, (grads, rate) in enumerate(zip(grads_of_steps, rates, strict=True), start=1):
        norm = np.sqrt(sum(np.sum(g**2) for g in grads.values()))
        factor = min(1.0, s.clip_norm / norm) if s.clip_norm else 1.0
        for name, value in params.items():
            g = grads[name] * factor
            m = s.beta1 * moments[name][0] + (1 - s.beta1) * g
            v = s.beta2 * moments[name][1] + (1 - s.beta2) * g**2
            moments[name] = (m, v)
            update = (m / (1 - s.beta1**count)) / (np.sqrt(v / (1 - s.beta2**count)) + 1e-8)
            decay = s.weight_decay * value if value.ndim >= 2 else 0.0
            params = params | {name: value - rate * (update + decay)}
    return params


@pytest.mark.parametrize("clip_norm", [0.5, 0.0])
def test_updates_are_adamw(clip_norm):
    rng = np.random.default_rng(0)
    shapes = {"kernel": (3, 4), "scale": (4,)}
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    grads = [{n: rng.normal(size=shape) for n, shape in shapes.items()} for _ in range(4)]
    s = settings(clip_norm=clip_norm)
    optimizer, rate = make_optimizer(s, 6), make_schedule(s, 6)
    found = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
    state = optimizer.init(found)
    for grad in grads:
        grad = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), grad)
        updates, state = optimizer.update(grad, state, found)
        found = jax.tree.map(jnp.add, found, updates)
    wanted = adamw_oracle(params, grads, s, [float(rate(step)) for step in range(4)])
    for name in shapes:
        np.testing.assert_allclose(found[name], wanted[name], **tolerance(jnp.float32))


def test_only_matrices_are_decayed():
    params = {
        "norm": {"scale": jnp.ones(3)},
        "proj": {"kernel": jnp.ones((3, 3)), "bias": jnp.ones(3)},
        "gates": {"A_log": jnp.ones((2, 2)), "dt_bias": jnp.ones((2, 2))},
        "embedding": jnp.ones((4, 3)),
    }
    marks = decayed(params)
    assert marks["proj"] == {"kernel": True, "bias": False}
    assert marks["embedding"] is True
    assert marks["norm"]["scale"] is False
    assert marks["gates"] == {"A_log": False, "dt_bias": False}
