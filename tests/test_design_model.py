"""Every row of the paper's Table 1 against dense Gaussian filters written from the design model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.design_model import (
    TABLE_1,
    DesignModel,
    Diagonal,
    Identity,
    Propagated,
    Reset,
    Rotation,
    Scalar,
    derive,
    table_1_names,
)
from tests.tolerances import tolerance

B, T, H, D, M = 2, 6, 2, 4, 3
PRIOR_VAR = 1.7


def condition(mean, cov, readout, noise, value):
    """Gaussian N(mean, cov) of z given value = readout z + N(0, noise)."""
    total = readout @ cov @ readout.T + noise
    gain = np.linalg.solve(total, readout @ cov).T
    return mean + gain @ (value - readout @ mean), cov - gain @ readout @ cov


def dense_memory_filter(row, *, reset):
    """Mean read of S_t by filtering vec(S_t) (column-major) with its full [DM, DM] covariance."""
    mean, cov = np.zeros(D * M), row["prior_var"] * np.eye(D * M)
    reads = []
    for t in range(T):
        step = np.kron(np.eye(M), row["transition"][t])
        noise = np.kron(np.eye(M), row["process_cov"][t])
        mean = step @ mean
        cov = row["variance"][t] * np.eye(D * M) if reset else step @ cov @ step.T + noise
        readout = np.kron(np.eye(M), row["k"][t][None])
        mean, cov = condition(mean, cov, readout, np.diag(row["obs_cov"][t]), row["v"][t])
        reads.append(np.kron(np.eye(M), row["q"][t][None]) @ mean)
    return np.stack(reads)


def dense_write_filter(row):
    """Mean read of S_t by filtering [vec(S_t); w_t], where w_t is drawn anew at every step."""
    size = D * M
    mean, cov = np.zeros(size + M), np.zeros((size + M, size + M))
    cov[:size, :size] = row["prior_var"] * np.eye(size)
    reads = []
    for t in range(T):
        step = np.zeros((size + M, size + M))
        step[:size, :size] = np.kron(np.eye(M), row["transition"][t])
        fresh = np.concatenate([np.kron(np.eye(M), row["k"][t][:, None]), np.eye(M)])
        mean = step @ mean
        cov = step @ cov @ step.T + row["variance"][t] * fresh @ fresh.T
        readout = np.concatenate([np.zeros((M, size)), np.eye(M)], axis=1)
        mean, cov = condition(mean, cov, readout, np.diag(row["obs_cov"][t]), row["v"][t])
        reads.append(np.kron(np.eye(M), row["q"][t][None]) @ mean[:size])
    return np.stack(reads)


def rotation_matrix(decay, angle):
    """diag(decay) times 2x2 rotations of interleaved (real, imaginary) pairs."""
    matrix = np.zeros((D, D))
    for pair, theta in enumerate(angle):
        i = 2 * pair
        block = [[np.cos(theta), -np.sin(theta)], [np.sin(theta), np.cos(theta)]]
        matrix[i : i + 2, i : i + 2] = block
    return np.diag(decay) @ matrix


@pytest.fixture(scope="module")
def numbers():
    """Random arrays of every part of a design model."""
    rng = np.random.default_rng(0)
    return {
        "q": rng.normal(size=(B, T, H, D)),
        "k": rng.normal(size=(B, T, H, D)),
        "v": rng.normal(size=(B, T, H, M)),
        "obs_var": rng.uniform(0.1, 1.0, size=(B, T, H)),
        "group_var": rng.uniform(0.1, 1.0, size=(B, T, H, M)),
        "process_var": rng.uniform(0.05, 0.5, size=(B, T, H)),
        "variance": rng.uniform(0.2, 2.0, size=(B, T, H)),
        "scalar": -rng.uniform(0.01, 1.0, size=(B, T, H)),
        "per_head": -rng.uniform(0.01, 1.0, size=H),
        "diagonal": -rng.uniform(0.01, 1.0, size=(B, T, H, D)),
        "pairs": np.repeat(-rng.uniform(0.01, 1.0, size=(B, T, H, D // 2)), 2, axis=-1),
        "angle": rng.uniform(-2.0, 2.0, size=(B, T, H, D // 2)),
    }


def transition_matrices(transition):
    """A_t as [B, T, H, D, D], for each kind of transition."""
    if isinstance(transition, Identity):
        return np.broadcast_to(np.eye(D), (B, T, H, D, D))
    decay = np.exp(np.asarray(transition.log_decay))
    if isinstance(transition, Scalar):
        return np.broadcast_to(decay, (B, T, H))[..., None, None] * np.eye(D)
    if isinstance(transition, Diagonal):
        return decay[..., None] * np.eye(D)
    matrices = [
        rotation_matrix(a, angle)
        for a, angle in zip(
            decay.reshape(-1, D), np.asarray(transition.angle).reshape(-1, D // 2), strict=True
        )
    ]
    return np.stack(matrices).reshape(B, T, H, D, D)


def oracle(model, numbers):
    """Reads [B, T, H, M] of the dense filter of `model`, head by head."""
    matrices = transition_matrices(model.transition)
    real_rows = np.diag(np.arange(D) % 2 == 0) if isinstance(model.transition, Rotation) else None
    noise_shape = np.eye(D) if real_rows is None else real_rows.astype(float)
    obs_cov = np.asarray(model.obs_var)
    obs_cov = obs_cov if obs_cov.ndim == 4 else np.repeat(obs_cov[..., None], M, axis=-1)
    reads = np.zeros((B, T, H, M))
    for b in range(B):
        for h in range(H):
            row = {name: numbers[name][b, :, h] for name in ("q", "k", "v", "variance")}
            row["transition"] = matrices[b, :, h]
            row["process_cov"] = numbers["process_var"][b, :, h, None, None] * noise_shape
            row["obs_cov"] = obs_cov[b, :, h]
            row["prior_var"] = PRIOR_VAR
            if model.observes == "write":
                reads[b, :, h] = dense_write_filter(row)
            else:
                reads[b, :, h] = dense_memory_filter(row, reset=isinstance(model.covariance, Reset))
    return reads


def case(name, numbers):
    """The transition and the r^2 of a named case: a row of Table 1, or one of its variants."""
    transitions = {
        "identity": Identity(),
        "scalar": Scalar(numbers["scalar"]),
        "per_head": Scalar(numbers["per_head"]),
        "diagonal": Diagonal(numbers["diagonal"]),
        "rotation": Rotation(numbers["pairs"], numbers["angle"]),
    }
    row, kind, observed = name.split("-")
    covariance = Reset(numbers["variance"])
    if TABLE_1[row].covariance is Propagated:
        covariance = Propagated(numbers["process_var"], PRIOR_VAR)
    return DesignModel(TABLE_1[row].observes, numbers[observed], covariance, transitions[kind])


CASES = [
    "bayesian-identity-obs_var",
    "bayesian-scalar-obs_var",
    "bayesian-diagonal-obs_var",
    "bayesian-rotation-obs_var",
    "bayesian-diagonal-group_var",
    "deltanet-identity-obs_var",
    "gated_deltanet-scalar-obs_var",
    "kda-diagonal-obs_var",
    "linear_attention-identity-obs_var",
    "retnet-per_head-obs_var",
    "gla-diagonal-obs_var",
    "mamba2-scalar-obs_var",
]


def test_every_row_of_table_1_has_a_case():
    assert {name.split("-")[0] for name in CASES} == set(TABLE_1)


@pytest.mark.parametrize("name", CASES)
def test_derived_op_is_the_exact_filter(name, numbers, x64):
    model = case(name, numbers)
    assert name.split("-")[0] in table_1_names(model)
    derived = derive(model)
    arrays = [jnp.asarray(numbers[part]) for part in ("q", "k", "v")]
    reads, _ = derived.apply(*arrays)
    assert reads.dtype == jnp.float64
    np.testing.assert_allclose(reads, oracle(model, numbers), **tolerance(jnp.float64, length=T))


def test_reset_forgets_evidence_that_the_bayesian_layer_keeps(numbers, x64):
    """The two models of Definition 1 differ: the oracle comparison can tell them apart."""
    arrays = [jnp.asarray(numbers[part]) for part in ("q", "k", "v")]
    propagated, _ = derive(case("bayesian-identity-obs_var", numbers)).apply(*arrays)
    reset, _ = derive(case("deltanet-identity-obs_var", numbers)).apply(*arrays)
    assert np.max(np.abs(propagated - reset)) > 0.1


@pytest.mark.parametrize("name", ["bayesian-diagonal-obs_var", "kda-diagonal-obs_var"])
def test_state_goes_in_and_out(name, numbers, x64):
    """Documents packed by segment_ids are read like documents alone, and a state carries on."""
    arrays = [jnp.asarray(numbers[part]) for part in ("q", "k", "v")]
    whole, _ = derive(case(name, numbers)).apply(*arrays)

    def cut(part):
        kept = {key: x[:, part] if x.ndim > 1 else x for key, x in numbers.items()}
        return case(name, kept), [array[:, part] for array in arrays]

    model, first = cut(slice(0, 2))
    _, state = derive(model).apply(*first)
    model, rest = cut(slice(2, T))
    split, _ = derive(model).apply(*rest, state=state)
    np.testing.assert_allclose(split, whole[:, 2:], **tolerance(jnp.float64, length=T))

    alone, _ = derive(model).apply(*rest)
    packed_ids = jnp.asarray(np.repeat([[0] * 2 + [1] * (T - 2)], B, axis=0), jnp.int32)
    packed, _ = derive(case(name, numbers)).apply(*arrays, segment_ids=packed_ids)
    np.testing.assert_allclose(packed[:, 2:], alone, **tolerance(jnp.float64, length=T))


def test_a_design_model_passes_through_jit_and_grad(numbers, x64):
    arrays = [jnp.asarray(numbers[part]) for part in ("q", "k", "v")]
    model = case("gated_deltanet-scalar-obs_var", numbers)

    def total(model):
        return jnp.sum(derive(model).apply(*arrays)[0])

    value, gradient = jax.jit(jax.value_and_grad(total))(model)
    np.testing.assert_allclose(value, total(model), **tolerance(jnp.float64, length=T))
    assert table_1_names(gradient) == ("gated_deltanet",)
    assert all(np.any(leaf) for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("row", ["deltanet", "linear_attention"])
def test_scalars_broadcast_and_value_heads_share_keys(row, numbers, x64):
    q, k, v = (jnp.asarray(numbers[part]) for part in ("q", "k", "v"))
    model = DesignModel(TABLE_1[row].observes, 0.3, Reset(0.7))
    shared, _ = derive(model).apply(q[:, :, :1], k[:, :, :1], v)
    repeated, _ = derive(model).apply(
        jnp.repeat(q[:, :, :1], H, axis=2), jnp.repeat(k[:, :, :1], H, axis=2), v
    )
    np.testing.assert_allclose(shared, repeated, **tolerance(jnp.float64, length=T))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (DesignModel("write", 0.1, Propagated(0.1)), "covariance: .*drawn anew"),
        (DesignModel("memory", 0.1, Reset(1.0), Rotation(0.0, 0.1)), "transition: .*delta_rule"),
        (DesignModel("write", 0.1, Reset(1.0), Rotation(0.0, 0.1)), "transition: .*no angle"),
        (DesignModel("memory", np.ones((1, 1, 1, 2)), Reset(1.0)), "obs_var: .*one number a head"),
        (DesignModel("both", 0.1, Reset(1.0)), "observes: found 'both'"),
    ],
)
def test_models_without_an_exact_op_say_why(model, message):
    with pytest.raises(ValueError, match=message):
        derive(model)


@pytest.mark.parametrize(
    ("obs_var", "variance", "message"), [(0.0, 1.0, "obs_var"), (0.1, -1.0, "covariance.variance")]
)
def test_impossible_variances_are_named(obs_var, variance, message):
    keys = jnp.ones((1, 1, 1, 2))
    with pytest.raises(ValueError, match=message):
        derive(DesignModel("memory", obs_var, Reset(variance))).apply(keys, keys, keys)


def test_table_names_are_not_shared_between_design_models():
    assert table_1_names(DesignModel("memory", 0.1, Reset(1.0))) == ("deltanet",)
    assert table_1_names(DesignModel("write", 0.1, Reset(1.0), Scalar(-0.1))) == (
        "retnet",
        "mamba2",
    )
