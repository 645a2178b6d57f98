"""Imported models compute what fla computes with the same files (C22)."""

import jax
import numpy as np
import pytest

from tests.interop.fixture_models import NAMES, call, imported, reference
from tests.tolerances import SCORE_LIMIT, assert_close

each_fixture = pytest.mark.parametrize("name", NAMES)


def close(found, wanted):
    """To 1e-4, and to what 64 steps of float32 arithmetic may differ by."""
    np.testing.assert_allclose(found, wanted, rtol=0, atol=SCORE_LIMIT)
    assert_close(found, wanted, "float32", length=64)


@each_fixture
def test_logits_of_a_whole_text_are_flas(name):
    config, params, _ = imported(name)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(params))
    found, _ = call(config)(params, reference(name)["tokens"])
    close(found, reference(name)["logits"])


@each_fixture
def test_logits_of_decoding_are_flas(name):
    config, params, _ = imported(name)
    tokens, wanted = reference(name)["tokens"], reference(name)["decoded"]
    start = tokens.shape[1] - wanted.shape[1]
    _, state = call(config)(params, tokens[:, :start])
    for step in range(wanted.shape[1]):
        found, state = call(config)(params, tokens[:, start + step][:, None], state)
        close(found[:, 0], wanted[:, step])


def test_every_model_type_is_there_and_tells_wrong_logits_from_right_ones():
    kinds = {imported(name).config.mixers[0] for name in NAMES}
    assert kinds == {"gated_deltanet", "deltanet", "gla", "mamba2"}
    for name in NAMES:
        assert reference(name)["tokens"].shape[1] > 64  # fla's chunked kernels read it
        assert reference(name)["logits"].std() > 0.5
