"""Choice of the next token: its distribution, its limits, its keys (C13)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.models.sampling import GREEDY, Sampling, limited_logits, row_keys, sample

DRAWS = 10_000


def draws(logits, sampling, seed=0):
    """Counts of DRAWS tokens of one row of logits."""
    rows = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (DRAWS, len(logits)))
    return np.bincount(sample(row_keys(seed, DRAWS), rows, sampling), minlength=len(logits))


def assert_drawn_from(counts, probabilities):
    """Every count is within five standard deviations of its mean; what has no mass is not drawn."""
    probabilities = np.asarray(probabilities)
    assert not counts[probabilities == 0].any()
    deviation = np.sqrt(DRAWS * probabilities * (1 - probabilities))
    assert (np.abs(counts - DRAWS * probabilities) <= 5 * deviation).all(), counts


def test_rows_of_the_table_beyond_the_tokenizer_are_never_drawn():
    """C13: tokenizer 5, table padded to 8, all logits equal; and pads that would win."""
    wanted = [0.2] * 5 + [0.0] * 3
    assert_drawn_from(draws([0.0] * 8, Sampling(vocab_size=5)), wanted)
    for sampling in (Sampling(top_k=6, vocab_size=5), Sampling(top_p=0.999, vocab_size=5)):
        assert_drawn_from(draws([0.0] * 5 + [9.0] * 3, sampling), wanted)
    best = sample(
        row_keys(0, 1), jnp.array([[2.0, 1, 0, 0, 0, 5, 5, 5]]), Sampling(0.0, None, 1, 5)
    )
    assert best.tolist() == [0]


def test_temperature_top_k_and_top_p_are_the_distributions_they_say():
    p = np.array([0.1, 0.4, 0.2, 0.25, 0.05])
    cold = p**2 / (p**2).sum()
    assert_drawn_from(draws(np.log(p), Sampling()), p)
    assert_drawn_from(draws(np.log(p), Sampling(temperature=0.5)), cold)
    assert_drawn_from(draws(np.log(p), Sampling(top_k=2)), np.array([0, 0.4, 0, 0.25, 0]) / 0.65)
    # 0.4 and 0.25 are not 0.7 yet, so 0.2 belongs to the nucleus.
    three = np.array([0, 0.4, 0.2, 0.25, 0])
    assert_drawn_from(draws(np.log(p), Sampling(top_p=0.7)), three / 0.85)
    # Of what top_k leaves, 0.4 / 0.65 = 0.615 is enough for 0.6.
    assert_drawn_from(draws(np.log(p), Sampling(top_k=2, top_p=0.6)), [0, 1, 0, 0, 0])


def test_equal_logits_are_cut_at_exactly_k_and_p():
    kept = np.isfinite(limited_logits(jnp.zeros((1, 6)), Sampling(top_k=2)))
    assert kept[0].tolist() == [True, True, False, False, False, False]
    kept = np.isfinite(limited_logits(jnp.zeros((1, 4)), Sampling(top_p=0.5)))
    assert kept[0].tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    "sampling",
    [GREEDY, Sampling(top_k=1), Sampling(top_p=1e-9), Sampling(temperature=1e-38)],
)
def test_what_leaves_one_token_is_the_greedy_choice(sampling):
    logits = jnp.array([[1.0, 3, 3, 2], [-1e30, 0, 0, 1e30]], jnp.float32)
    if sampling.temperature == 1e-38:  # ties stay ties at any temperature
        logits = logits.at[0, 2].set(2.5)
    assert sample(row_keys(0, 2), logits, sampling).tolist() == [1, 3]


@pytest.mark.parametrize("size", [1, 50_000])
def test_no_limit_cuts_the_tail_by_rounding(size):
    logits = jnp.zeros((1, size))
    for sampling in (Sampling(), Sampling(top_k=size + 1)):
        assert np.isfinite(limited_logits(logits, sampling)).all()


def test_bfloat16_logits_are_limited_in_float32():
    logits = jnp.zeros((1, 1000), jnp.bfloat16)
    limited = limited_logits(logits, Sampling(top_p=0.9))
    assert limited.dtype == jnp.float32
    assert abs(int(np.isfinite(limited).sum()) - 900) <= 1


def test_a_row_depends_on_its_own_key_and_logits():
    logits = jax.random.normal(jax.random.key(1), (6, 50))
    keys, sampling = row_keys(3, 6), Sampling(top_k=20, top_p=0.9)
    together = sample(keys, logits, sampling)
    for row in range(6):
        alone = sample(keys[row : row + 1], logits[row : row + 1], sampling)
        assert alone[0] == together[row]
    np.testing.assert_array_equal(together, sample(row_keys(3, 6), logits, sampling))
    assert (jax.random.key_data(row_keys(3, 6)[:2]) == jax.random.key_data(row_keys(3, 2))).all()
    other = sample(row_keys(4, 6), logits, sampling)
    assert (np.asarray(other) != np.asarray(together)).any()


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), Sampling(top_k=2, top_p=0.5)])
def test_rows_without_a_distribution_have_no_token(sampling):
    nan, inf = np.nan, np.inf
    logits = jnp.array([[0.0, nan, 1], [0, inf, 1], [-inf, -inf, -inf], [-inf, 1, -inf]])
    assert sample(row_keys(0, 4), logits, sampling).tolist() == [-1, -1, -1, 1]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"temperature": -0.1}, "temperature: found -0.1, wanted"),
        ({"temperature": float("nan")}, "temperature: found nan"),
        ({"top_k": 0}, "top_k: found 0, wanted a whole number >= 1"),
        ({"top_k": 2.0}, "top_k: found 2.0"),
        ({"top_p": 0.0}, r"top_p: found 0, wanted a number in \(0, 1\]"),
        ({"top_p": 1.5}, "top_p: found 1.5"),
        ({"vocab_size": 0}, "vocab_size: found 0"),
    ],
)
def test_values_that_do_not_fit(values, words):
    with pytest.raises(ValueError, match=words):
        Sampling(**values)
