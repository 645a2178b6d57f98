"""Gradients: padding, dead units (C2), and equality of padded and unpadded rows (C8)."""

import jax
import numpy as np
import pytest

from tests.layers.cases import BATCH, CASES, LENGTH, STEPS, assert_trees_close, gradients, inputs
from tests.tolerances import assert_close

REAL = 11
each_mixer = pytest.mark.parametrize("case", CASES)
WEIGHTS = np.random.default_rng(7).standard_normal(inputs().shape).astype("float32")
NO_PADDING = np.zeros((BATCH, STEPS))


@each_mixer
def test_padding_takes_no_gradient_and_gives_none(case):
    real, weights = inputs(REAL), WEIGHTS[:, :REAL]
    wanted_params, wanted_x = gradients(case, real, None, weights)
    x = np.full((BATCH, STEPS, real.shape[2]), np.nan, np.float32)
    ids = np.full((BATCH, STEPS), -1)
    padded_weights = np.ones_like(x)
    places = [np.arange(STEPS - REAL, STEPS), np.arange(REAL), np.arange(4, REAL + 4)]
    for row, place in enumerate(places):
        x[row, place], ids[row, place] = real[row], row
        padded_weights[row, place] = weights[row]
    found_params, found_x = gradients(case, x, ids, padded_weights)
    np.testing.assert_array_equal(found_x[ids < 0], 0)
    how = {"dtype": "float32", "kind": "gradient", "length": BATCH * LENGTH}
    assert_trees_close(found_params, wanted_params, assert_close, **how)
    assert_close(np.stack([found_x[r, place] for r, place in enumerate(places)]), wanted_x, **how)
    assert np.abs(wanted_x).max() > 0


@each_mixer
@pytest.mark.parametrize("dead", ["one step", "every step"])
def test_zero_inputs_have_finite_gradients(case, dead):
    """x = 0 makes zero keys (C2)."""
    x = np.array(inputs())
    if dead == "one step":
        x[:, 5] = 0
    else:
        x[:] = 0
    for gradient in jax.tree.leaves(gradients(case, x, NO_PADDING, WEIGHTS)):
        assert np.isfinite(gradient).all()


@each_mixer
def test_every_parameter_has_a_gradient(case):
    params, _ = gradients(case, inputs(), NO_PADDING, WEIGHTS)
    for path, gradient in jax.tree_util.tree_leaves_with_path(params):
        assert np.abs(gradient).max() > 0, path


@each_mixer
def test_gradient_does_not_reach_later_inputs_or_other_documents(case):
    weights = np.array(WEIGHTS)
    weights[:, :9] = 0
    weights[:, 12:] = 0
    ids = np.tile(np.repeat([0, 1, 2], [9, 6, 5]), (BATCH, 1))
    _, x = gradients(case, inputs(), ids, weights)
    outside = np.concatenate([x[:, :9], x[:, 15:]], axis=1)
    assert_close(outside, np.zeros_like(outside), "float32", kind="gradient")
    assert np.abs(x[:, 9:12]).min(axis=(1, 2)).max() > 0
