"""Short convolution: windows over the last valid inputs of the document (C8, C10)."""

import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.layers import ShortConvolution
from tests.tolerances import assert_close

KERNEL = {"params": {"kernel": jnp.full((4, 1), 0.25)}}


def convolve(values, window=None, ids=None):
    x = jnp.asarray(values, jnp.float32)[None, :, None]
    ids = None if ids is None else jnp.asarray(ids, jnp.int32)[None]
    y, window = ShortConvolution(4).apply(KERNEL, x, window, ids)
    return np.asarray(y)[0, :, 0], window


@pytest.mark.parametrize(
    ("values", "ids", "places"),
    [
        ([4, 8, 12], None, [0, 1, 2]),
        ([4, 8, 12], [0, 0, 0], [0, 1, 2]),
        ([100, 100, 4, 8, 12], [-1, -1, 0, 0, 0], [2, 3, 4]),
        ([4, 8, 12, 100], [0, 0, 0, -1], [0, 1, 2]),
        ([100, 4, np.nan, 8, 100, 12, 100], [-1, 2, -1, 2, -3, 2, -1], [1, 3, 5]),
        ([40, 80, 4, 8, 12], [7, 7, 1, 1, 1], [2, 3, 4]),
        ([40, 4, 100, 8, 12], [7, 1, -1, 1, 1], [1, 3, 4]),
    ],
)
def test_padding_and_earlier_documents_are_not_in_the_window(values, ids, places):
    y, window = convolve(values, ids=ids)
    assert_close(y[places], [1, 3, 6], "float32")
    np.testing.assert_array_equal(window[0, :, 0], [4, 8, 12])
    if ids is not None:
        np.testing.assert_array_equal(y[np.asarray(ids) < 0], 0)


@pytest.mark.parametrize(("split", "first"), [(1, 0.75), (2, 1.5), (3, 2.5), (5, 4.5)])
def test_resumes_from_its_window(split, first):
    x = np.arange(1.0, 9.0)
    whole, _ = convolve(x)
    start, window = convolve(x[:split])
    rest, _ = convolve(x[split:], window)
    assert_close(rest[0], first, "float32")
    np.testing.assert_array_equal(np.concatenate([start, rest]), whole)
    np.testing.assert_array_equal(convolve(x[split:], window, np.zeros(8 - split))[0], rest)


def test_a_short_last_document_leaves_zeros_in_the_window():
    _, window = convolve([5, 6, 7, 8], ids=[0, 0, 0, 1])
    np.testing.assert_array_equal(window[0, :, 0], [0, 0, 8])
    _, window = convolve([100], window, ids=[-1])
    np.testing.assert_array_equal(window[0, :, 0], [0, 0, 8])


def test_last_tap_is_for_the_current_input():
    kernel = {"params": {"kernel": jnp.asarray([[1.0], [10.0], [100.0], [1000.0]])}}
    y, _ = ShortConvolution(4).apply(kernel, jnp.asarray([[[1.0], [2.0], [3.0], [4.0]]]))
    np.testing.assert_array_equal(y[0, :, 0], [1000, 2100, 3210, 4321])


def test_bfloat16_inputs_are_kept_exactly():
    x = jnp.asarray([[[1.5], [2.5]]], jnp.bfloat16)
    y, window = ShortConvolution(4).apply(KERNEL, x)
    assert y.dtype == jnp.bfloat16 and window.dtype == jnp.float32
    np.testing.assert_array_equal(window[0, :, 0], [0, 1.5, 2.5])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 0}, "size: found 0, wanted a whole number >= 1"),
        ({"activation": "gelu"}, "activation: found 'gelu', wanted one of 'identity', 'silu'"),
    ],
)
def test_bad_options_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        ShortConvolution(**changes)


def test_activation_is_applied_before_the_result_is_rounded():
    x = jnp.asarray([[[1.5], [-2.5], [0.3]]], jnp.bfloat16)
    kernel = {"params": {"kernel": jnp.asarray([[0.7], [1.3]])}}
    y, _ = ShortConvolution(2, activation="silu").apply(kernel, x)
    wide, _ = ShortConvolution(2).apply(kernel, x.astype(jnp.float32))
    np.testing.assert_array_equal(y, (wide / (1 + jnp.exp(-wide))).astype(jnp.bfloat16))
