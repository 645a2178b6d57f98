"""Every index of every leaf and tensor is in exactly one piece, whatever the model."""

import json

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from bayesmem.interop.architecture import model_pieces
from bayesmem.interop.architectures import read_config
from bayesmem.interop.checkpoint import leaf_shapes
from bayesmem.interop.pieces import fill_leaves, make_tensors, tensor_shapes
from tests.interop.fixture_models import NAMES, imported

FLAGS = (
    "tie_word_embeddings use_gate use_beta use_output_gate use_short_conv fuse_norm use_conv_bias "
    "rmsnorm"
).split()


@st.composite
def configs(draw):
    """Small config.json of any model type."""
    heads, width = draw(st.integers(1, 3)), draw(st.integers(1, 3)) * 6
    kind = draw(st.sampled_from(("gated_deltanet", "delta_net", "gla", "mamba2")))
    config = {
        "model_type": kind,
        "vocab_size": draw(st.integers(1, 9)),
        "hidden_size": width,
        "num_hidden_layers": draw(st.integers(1, 2)),
        "intermediate_size": draw(st.integers(1, 9)),
        "conv_size": draw(st.integers(1, 5)),
        "conv_kernel": draw(st.integers(1, 5)),
    }
    if kind == "mamba2":
        sizes = {"expand": 2, "head_dim": 3, "state_size": draw(st.integers(1, 5))}
        sizes["n_groups"] = draw(st.sampled_from((1, 2)))
    else:
        sizes = {"num_heads": heads, "expand_k": draw(st.sampled_from((0.5, 1.0, 2.0)))}
        sizes["expand_v"] = draw(st.sampled_from((1.0, 2.0)))
    if kind == "gated_deltanet":
        sizes |= {"head_dim": draw(st.integers(1, 4)), "num_v_heads": heads * 2}
    chosen = {name: draw(st.booleans()) for name in FLAGS}
    return config | sizes | chosen


def random_leaves(shapes):
    """Leaves in which no two numbers are the same."""
    count = iter(range(len(shapes)))
    return {
        name: (np.arange(np.prod(shape)) + 10_000 * next(count)).reshape(shape).astype(np.float32)
        for name, shape in shapes.items()
    }


@settings(deadline=None, max_examples=25)
@given(configs())
def test_tensors_made_of_leaves_give_the_leaves_again(config):
    try:
        architecture, keys, ours = read_config(config)
    except ValueError as error:  # sizes that do not fit each other
        assert "whole number" in str(error)
        return
    shapes = leaf_shapes(ours)
    pieces, leaves = model_pieces(architecture, ours, keys), random_leaves(shapes)
    wanted = tensor_shapes(pieces, shapes)
    tensors = dict(make_tensors(pieces, leaves, wanted))
    assert {name: tensor.shape for name, tensor in tensors.items()} == wanted
    numbers = np.concatenate([tensor.ravel() for tensor in tensors.values()])
    assert numbers.size == len(set(numbers)) == sum(leaf.size for leaf in leaves.values())
    found = fill_leaves(pieces, shapes, tensors.items())
    assert found.keys() == leaves.keys()
    for name, leaf in leaves.items():
        np.testing.assert_array_equal(found[name], leaf)


@pytest.mark.parametrize("name", NAMES)
def test_a_piece_left_out_twice_or_cut_is_named(name):
    config = imported(name).config
    architecture, keys, _ = read_config(json.loads(imported(name).origin.config))
    shapes, pieces = leaf_shapes(config), model_pieces(architecture, config, keys)
    for place in range(0, len(pieces), 5):
        piece, others = pieces[place], [*pieces[:place], *pieces[place + 1 :]]
        start, end = piece.columns
        cut = piece._replace(columns=(start, end - 1), rows=(piece.rows[0], piece.rows[1] - 1))
        for wrong in (others, [*others, piece, piece], [*others, cut]):
            with pytest.raises(ValueError, match="pieces: found"):
                tensor_shapes(wrong, shapes)
