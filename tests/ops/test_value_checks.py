"""Values that ops refuse beyond a sign: wrapped ids, infinities, unequal pairs."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops.test_checks import FUNCTIONS, B, D, H, T, call, replaced, valid


@pytest.mark.parametrize("op", FUNCTIONS)
def test_ids_that_int32_would_wrap_are_refused(op):
    for extreme in (2**31, -(2**31) - 1):
        ids = np.zeros((B, T), np.int64)
        ids[0, 1] = extreme
        with pytest.raises(ValueError, match=f"segment_ids.*{extreme}.*int32"):
            call(op, replaced(op, "segment_ids", ids))


@pytest.mark.parametrize("name", ("process_var", "obs_var", "prior_var"))
def test_infinite_variances_are_refused(name):
    value = jnp.full_like(valid("kalman_memory")[name], jnp.inf)
    with pytest.raises(ValueError, match=f"{name}: found inf.*finite"):
        call("kalman_memory", replaced("kalman_memory", name, value))


def test_decays_that_differ_within_a_rotated_pair_are_refused():
    decays = jnp.tile(jnp.array([-0.1, -0.2]), (B, T, H, D // 2))
    with pytest.raises(ValueError, match="log_decay: found .*equal decays in the two rows"):
        call("kalman_memory", replaced("kalman_memory", "log_decay", decays))
    case = replaced("kalman_memory", "log_decay", decays)
    del case["angle"]
    call("kalman_memory", case)
