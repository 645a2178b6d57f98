"""What the chunk forms of sums and of the delta rule keep of a token for the backward pass."""

import jax
import jax.numpy as jnp
import pytest

from bayesmem.ops import delta_rule, linear_attention

LENGTH, HEADS, DIM, VALUES = 16, 2, 8, 12


def kept_a_token(decays, erases):
    """Numbers more that are kept of a row with one more token, a head."""

    def of_length(steps):
        def shape(*sizes):
            return jax.ShapeDtypeStruct((1, steps, HEADS, *sizes), jnp.float32)

        arrays = {"q": shape(DIM), "k": shape(DIM), "v": shape(VALUES)}
        arrays |= {"log_decay": shape(*decays)} | ({"beta": shape()} if erases else {})

        def run(arrays):
            op = delta_rule if erases else linear_attention
            return op(**arrays, chunk_size=LENGTH, implementation="chunked")

        kept = jax.eval_shape(lambda arrays: jax.vjp(run, arrays)[1], arrays)
        return sum(leaf.size for leaf in jax.tree.leaves(kept))

    return (of_length(8 * LENGTH) - of_length(4 * LENGTH)) / (4 * LENGTH * HEADS)


@pytest.mark.parametrize("decays", [(), (DIM,)], ids=["scalar", "diagonal"])
@pytest.mark.parametrize("erases", [False, True], ids=["additive", "delta"])
def test_inputs_entries_and_inverses_are_kept(decays, erases):
    inputs = 2 * DIM + VALUES + (DIM if decays else 1) + (1 if erases else 0)
    entries, inverse = DIM * VALUES / LENGTH, LENGTH if erases else 0
    assert kept_a_token(decays, erases) <= inputs + entries + inverse
