"""Rows of the learned collision, read token by token, and what a task refuses."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.data.collision import CollisionTask, random_rotation, sample_collision
from tests.tolerances import assert_close

TASK = CollisionTask(pairs=3, dims=7, labels=9, boost=2, floods=(1, 2, 5), overlap=(0.3, 0.9))
ROWS = 12
sample = jax.jit(sample_collision, static_argnums=(0, 2))


def rows(task=TASK, seed=0, count=ROWS):
    """Each row of a batch as NumPy arrays."""
    batch = jax.tree.map(np.asarray, sample(task, jax.random.key(seed), count))
    return [type(batch)(*(array[row] for array in batch)) for row in range(count)]


def split_tokens(row, task=TASK):
    """Types [T], addresses [T, D] and one-hot labels [T, V]."""
    kinds, addresses, labels = np.split(row.tokens, [1, 1 + task.dims], axis=1)
    return kinds[:, 0], addresses, labels


def read(row, task=TASK):
    """The labels written by seed, boost and flood, each a list, and the address of each label."""
    kinds, addresses, labels = split_tokens(row, task)
    writes = row.query_positions[0]
    assert (kinds[:writes] == 0).all() and (labels[:writes].sum(axis=1) == 1).all()
    named = labels[:writes].argmax(axis=1).tolist()
    address = dict(zip(named, addresses, strict=False))
    for label, written in zip(named, addresses, strict=False):
        np.testing.assert_array_equal(written, address[label])
    ends = np.cumsum([2 * task.pairs, task.boost * task.pairs])
    return [part.tolist() for part in np.split(np.array(named), ends)], address


def test_phases_write_every_identity_as_often_as_they_should():
    floods = set()
    for row in rows():
        (seed, boost, flood), address = read(row)
        firsts, seconds = flood[:: len(flood) // TASK.pairs], boost[:: TASK.boost]
        assert len(set(seed)) == len(seed) == len(address) == 2 * TASK.pairs
        assert set(firsts) | set(seconds) == set(seed)
        assert boost == np.repeat(seconds, TASK.boost).tolist()
        assert flood == np.repeat(firsts, len(flood) // TASK.pairs).tolist()
        floods.add(len(flood) // TASK.pairs)
        # The pair that is n-th in the boost is n-th in the flood; queries ask for every B once.
        rival = dict(zip(seconds, firsts, strict=True))
        assert sorted(row.targets.tolist()) == sorted(seconds)
        assert row.rivals.tolist() == [rival[label] for label in row.targets.tolist()]
        for position, label in zip(row.query_positions, row.targets, strict=True):
            np.testing.assert_array_equal(row.addresses[position], address[label])
    assert floods == set(TASK.floods)


def test_queries_show_their_type_and_address_and_no_label():
    for row in rows():
        kinds, addresses, labels = split_tokens(row)
        asked = row.query_positions
        np.testing.assert_array_equal(asked, asked[0] + np.arange(TASK.pairs))
        np.testing.assert_array_equal(np.flatnonzero(kinds), asked)
        np.testing.assert_array_equal(kinds[asked], 1)
        np.testing.assert_array_equal(labels[asked], 0)
        np.testing.assert_array_equal(addresses, row.addresses)


def test_what_follows_the_last_query_is_padding_of_zeros():
    lengths = set()
    for row in rows():
        end = row.query_positions[-1] + 1
        np.testing.assert_array_equal(row.segment_ids[:end], 0)
        np.testing.assert_array_equal(row.segment_ids[end:], -1)
        np.testing.assert_array_equal(row.tokens[end:], 0)
        assert row.tokens.shape == (TASK.length, TASK.features)
        lengths.add(int(end))
    assert max(lengths) == TASK.length and len(lengths) == len(TASK.floods)


def test_pairs_overlap_by_the_rows_rho_and_are_orthogonal_otherwise():
    drawn = []
    for row in rows():
        (_, boost, flood), address = read(row)
        firsts, seconds = flood[:: len(flood) // TASK.pairs], boost[:: TASK.boost]
        keys = np.stack([address[label] for label in [*firsts, *seconds]]).astype(np.float64)
        drawn.append(np.diagonal(keys[: TASK.pairs] @ keys[TASK.pairs :].T).mean())
        crossed = np.kron([[0, drawn[-1]], [drawn[-1], 0]], np.eye(TASK.pairs))
        assert_close(keys @ keys.T, np.eye(2 * TASK.pairs) + crossed, "float32")
    assert TASK.overlap[0] <= min(drawn) < 0.5 and 0.7 < max(drawn) <= TASK.overlap[1]


def test_one_overlap_is_met_exactly():
    task = CollisionTask(overlap=(0.95, 0.95), floods=(1,))
    for row in rows(task, count=2):
        (_, boost, flood), address = read(row, task)
        for first, second in zip(flood, boost[:: task.boost], strict=True):
            assert_close(address[first] @ address[second], 0.95, "float32", length=task.dims)


def test_rows_differ_in_rotation_labels_and_orders():
    read_rows = [read(row) for row in rows()]
    for part in range(3):
        assert len({tuple(phases[part]) for phases, _ in read_rows}) > 1
    asked = []
    for row, (phases, _) in zip(rows(), read_rows, strict=True):
        turns = phases[1][:: TASK.boost]
        asked.append(tuple(turns.index(label) for label in row.targets.tolist()))
    assert len(set(asked)) > 2
    assert len({tuple(row.addresses[0].tolist()) for row in rows()}) == ROWS


def test_rotations_are_orthogonal_and_prefer_no_direction():
    many = jax.vmap(partial(random_rotation, dims=4))(jax.random.split(jax.random.key(3), 4000))
    many = np.asarray(many, np.float64)
    assert_close(many @ many.mT, np.broadcast_to(np.eye(4), many.shape), "float32")
    assert 0.4 < (np.linalg.det(many) > 0).mean() < 0.6
    # Mean 0 and variance 1 / 4 of every entry, to 6 standard errors.
    assert np.abs(many.mean(axis=0)).max() < 6 * np.sqrt(0.25 / 4000)
    assert np.abs((many**2).mean(axis=0) - 0.25).max() < 6 * np.sqrt(2 / 4**2 / 4000)


def test_a_key_is_a_batch_in_and_out_of_jit_vmap_and_scan():
    keys = jax.random.split(jax.random.key(5), 2)
    draw = partial(sample_collision, TASK, batch_size=3)
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
    batch = jax.jit(sample_collision, static_argnums=(0, 2))(TASK, jax.random.key(0), 2)
    assert [str(array.dtype) for array in batch] == ["float32"] * 2 + ["int32"] * 4
    assert jnp.asarray(1.0).dtype == jnp.float64


def test_sizes_of_the_paper():
    task = CollisionTask()
    assert (task.length, task.features) == (8 * (2 + 4 + 8 + 1), 33)
    assert CollisionTask(floods=[256]) == CollisionTask(floods=(256,))
    assert hash(CollisionTask(floods=[256])) == hash(CollisionTask(floods=(256,)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pairs": 0}, ["pairs", "0", ">= 1"]),
        ({"pairs": 9}, ["dims", "16", "18"]),
        ({"dims": 32, "pairs": 9}, ["labels", "16", "18"]),
        ({"dims": 16.0}, ["dims", "16.0", "integer"]),
        ({"boost": 0}, ["boost", "0", ">= 1"]),
        ({"floods": ()}, ["floods", "()"]),
        ({"floods": 4}, ["floods", "4"]),
        ({"floods": (1, 0)}, ["floods", "0", ">= 1"]),
        ({"overlap": (0.8, 0.6)}, ["overlap", "(0.8, 0.6)", "low <= high"]),
        ({"overlap": (0.8, 1.0)}, ["overlap", "1.0", "< 1"]),
        ({"overlap": (-0.1, 0.5)}, ["overlap", "-0.1"]),
        ({"overlap": 0.5}, ["overlap", "0.5", "pair"]),
        ({"overlap": (0.5, float("nan"))}, ["overlap", "nan"]),
    ],
)
def test_what_does_not_fit_raises_and_names_the_numbers(options, words):
    with pytest.raises(ValueError) as error:
        CollisionTask(**options)
    for word in words:
        assert word in str(error.value)


def test_batch_size_is_checked():
    with pytest.raises(ValueError, match="batch_size: found 0, wanted an integer >= 1"):
        sample_collision(TASK, jax.random.key(0), 0)
