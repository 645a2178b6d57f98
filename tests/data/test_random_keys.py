"""Rows of random-key crowding, read token by token, and what a task refuses."""

from functools import partial

import jax
import numpy as np
import pytest

from bayesmem.data.random_keys import RandomKeysTask, sample_random_keys
from tests.tolerances import assert_close

TASK = RandomKeysTask(writes=(3, 6, 9), queries=3, key_dim=8, dims=4, labels=5)
ROWS = 12
sample = jax.jit(sample_random_keys, static_argnums=(0, 2))


def rows(task=TASK, seed=0, count=ROWS):
    """Each row of a batch as NumPy arrays."""
    batch = jax.tree.map(np.asarray, sample(task, jax.random.key(seed), count))
    return [type(batch)(*(array[row] for array in batch)) for row in range(count)]


def test_queries_ask_for_different_keys_that_were_written():
    counts, asked_for = set(), set()
    for row in rows():
        writes = int(row.query_positions[0])
        counts.add(writes)
        labels = row.tokens[:writes, 1 + TASK.dims :]
        assert (row.tokens[:writes, 0] == 0).all() and (labels.sum(axis=1) == 1).all()
        written = [address.tolist() for address in row.addresses[:writes]]
        found = [written.index(row.addresses[p].tolist()) for p in row.query_positions]
        assert len(set(found)) == TASK.queries
        np.testing.assert_array_equal(labels[found].argmax(axis=1), row.targets)
        np.testing.assert_array_equal(row.rivals, -1)
        asked_for.update((writes, place) for place in found)
    assert counts == set(TASK.writes)
    assert len({place for writes, place in asked_for if writes == 9}) > TASK.queries


def test_queries_show_no_label_and_padding_follows_them():
    for row in rows():
        asked, end = row.query_positions, row.query_positions[-1] + 1
        np.testing.assert_array_equal(np.flatnonzero(row.tokens[:, 0]), asked)
        np.testing.assert_array_equal(row.tokens[asked, 1 + TASK.dims :], 0)
        np.testing.assert_array_equal(row.tokens[:, 1 : 1 + TASK.dims], row.addresses)
        np.testing.assert_array_equal(row.segment_ids, np.where(np.arange(12) < end, 0, -1))
        np.testing.assert_array_equal(row.tokens[end:], 0)
        assert row.tokens.shape == (TASK.length, TASK.features) == (12, 10)


def test_addresses_have_unit_length():
    for row in rows():
        used = row.addresses[row.segment_ids == 0].astype(np.float64)
        assert_close(np.linalg.norm(used, axis=1), np.ones(len(used)), "float32")


def test_all_rows_and_batches_see_one_projection():
    other = RandomKeysTask(writes=(9,), queries=3, key_dim=8, dims=4, labels=5)
    np.testing.assert_array_equal(TASK.projection(), other.projection())
    seeded = RandomKeysTask(writes=(9,), queries=3, key_dim=8, dims=4, labels=5, projection_seed=1)
    assert not np.array_equal(seeded.projection(), other.projection())
    # Keys of one dimension are +1 and -1, and their addresses the two ends of one direction.
    line = RandomKeysTask(writes=(3,), queries=3, key_dim=1, dims=4, labels=5)
    direction = line.projection()[0] / np.linalg.norm(line.projection()[0])
    for seed in (0, 1):
        for row in rows(line, seed, count=2):
            assert_close(
                np.abs(row.addresses @ np.asarray(direction)), np.ones(line.length), "float32"
            )


def test_labels_are_uniform():
    batch = sample(RandomKeysTask(labels=4), jax.random.key(0), 64)
    counts = np.asarray(batch.tokens[..., 17:].sum(axis=(0, 1)))
    # Binomial, to 6 standard errors.
    assert np.abs(counts / counts.sum() - 0.25).max() < 6 * np.sqrt(0.25 * 0.75 / counts.sum())


def test_a_key_is_a_batch_in_and_out_of_jit_vmap_and_scan():
    keys = jax.random.split(jax.random.key(5), 2)
    draw = partial(sample_random_keys, TASK, batch_size=3)
    _, scanned = jax.lax.scan(lambda carry, key: (carry, draw(key)), 0, keys)
    mapped = jax.jit(jax.vmap(draw))(keys)
    for run, key in enumerate(keys):
        for trees in zip(sample(TASK, key, 3), draw(key), mapped, scanned, strict=True):
            wanted = np.asarray(trees[0])
            for found in (trees[1], trees[2][run], trees[3][run]):
                assert found.dtype == wanted.dtype
                assert_close(found, wanted, "float32")
    assert not np.array_equal(mapped.tokens[0], mapped.tokens[1])


def test_double_precision_changes_no_dtype(x64):
    batch = jax.jit(sample_random_keys, static_argnums=(0, 2))(TASK, jax.random.key(0), 2)
    assert [str(array.dtype) for array in batch] == ["float32"] * 2 + ["int32"] * 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"writes": ()}, ["writes", "()"]),
        ({"writes": (16, 7)}, ["writes", "7", "queries = 8"]),
        ({"writes": (16, 8.0)}, ["writes", "8.0", "integer"]),
        ({"queries": 0}, ["queries", "0", ">= 1"]),
        ({"key_dim": 0}, ["key_dim", "0"]),
        ({"dims": -1}, ["dims", "-1"]),
        ({"labels": True}, ["labels", "True"]),
        ({"projection_seed": -1}, ["projection_seed", "-1", ">= 0"]),
    ],
)
def test_what_does_not_fit_raises_and_names_the_numbers(options, words):
    with pytest.raises(ValueError) as error:
        RandomKeysTask(**options)
    for word in words:
        assert word in str(error.value)


def test_batch_size_is_checked():
    with pytest.raises(ValueError, match="batch_size: found -1, wanted an integer >= 1"):
        sample_random_keys(TASK, jax.random.key(0), -1)
