"""MQAR rows against a reader that takes them token by token, and their sizes and seeds."""

import doctest
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesmem.data import mqar
from bayesmem.data.mqar import MqarTask, make_mqar, sample_mqar, split_seed


def written_pairs(row, task):
    """The (key, value) writes of a row in reading order, read by the text of the task alone."""
    block = {"block": task.block_size or task.num_pairs}.get(task.variant, 1)
    tokens, pairs = list(row[: task.context_length]), []
    for _ in range(task.passes):
        left = task.num_pairs
        while left:
            size = min(block, left)
            pairs += zip(tokens[:size], tokens[size : 2 * size], strict=True)
            tokens, left = tokens[2 * size :], left - size
    return pairs + list(zip(tokens[::2], tokens[1::2], strict=True))


def assert_rows_are_right(batch, task):
    for row, targets, positions in zip(*(array.tolist() for array in batch), strict=True):
        pairs = written_pairs(row, task)
        memory = dict(pairs)
        assert len(memory) == task.num_pairs
        queries = {position: row[position] for position in positions}
        assert sorted(queries.values()) == sorted(memory)
        assert [memory[queries[position]] for position in positions] == targets
        assert positions == sorted(set(positions)) and positions[0] >= task.context_length
        assert all(position % 2 == 0 for position in positions)
        # No key anywhere else after the writes: no query that is not asked.
        for position in range(task.context_length, task.seq_len):
            assert position in queries or row[position] not in memory
        if not task.values_may_be_keys:
            assert not {value for _, value in pairs} & set(memory)
        first, updates = pairs[: task.num_pairs], pairs[task.passes * task.num_pairs :]
        assert pairs[: len(pairs) - len(updates)] == first * task.passes
        assert len({key for key, _ in updates}) == len(updates) == task.num_updates
        assert all(dict(first)[key] != value for key, value in updates)


@st.composite
def tasks(draw):
    variant = draw(st.sampled_from(mqar.VARIANTS))
    pairs, passes = draw(st.integers(1, 6)), draw(st.integers(1, 2))
    room = 2 * pairs * (passes + 2) + 2 * draw(st.integers(0, 5))
    return MqarTask(
        variant=variant,
        seq_len=room,
        num_pairs=pairs,
        vocab_size=pairs + draw(st.integers(2, 30)),
        power_a=draw(st.sampled_from([0.01, 0.5, 1.0])),
        passes=passes,
        update_fraction=draw(st.sampled_from([0.1, 0.5, 1.0])),
        block_size=draw(st.integers(1, pairs)) if variant == "block" else None,
        values_may_be_keys=draw(st.booleans()),
    )


@settings(max_examples=60, deadline=None)
@given(tasks(), st.integers(0, 2**70))
def test_every_row_reads_back(task, seed):
    batch = sample_mqar(task, num_examples=5, seed=seed)
    assert [array.dtype for array in batch] == [np.int32] * 3
    assert batch.inputs.min() >= 0 and batch.inputs.max() < task.vocab_size
    assert_rows_are_right(batch, task)


def test_small_and_full_sizes():
    """C24: (vocab 12, T 16, 2 pairs) works, and 16 pairs just fit 64 tokens."""
    for sizes in ((12, 16, 2), (8192, 64, 16)):
        task = MqarTask(vocab_size=sizes[0], seq_len=sizes[1], num_pairs=sizes[2])
        assert_rows_are_right(sample_mqar(task, num_examples=50, seed=0), task)


def test_two_passes_present_the_pairs_twice():
    """C24: two passes over the pairs."""
    sizes = {"seq_len": 64, "num_pairs": 4, "vocab_size": 256}
    rows = make_mqar(num_examples=7, seed=0, passes=2, **sizes).inputs
    np.testing.assert_array_equal(rows[:, :8], rows[:, 8:16])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_pairs": 17}, ["seq_len", "64", "68", "17"]),
        ({"seq_len": 63}, ["seq_len", "63", "even"]),
        ({"passes": 2, "num_pairs": 11}, ["66", "64"]),
        ({"variant": "update", "num_pairs": 15}, ["76", "64"]),
        ({"vocab_size": 4}, ["vocab_size", "4", "5"]),
        ({"variant": "update", "vocab_size": 5}, ["vocab_size", "5", "6"]),
        ({"variant": "blocks"}, ["variant", "blocks", "block"]),
        ({"block_size": 2}, ["block_size", "base"]),
        ({"variant": "block", "block_size": 5}, ["block_size", "5", "4"]),
        ({"variant": "block", "block_size": 0}, ["block_size", "0"]),
        ({"variant": "update", "update_fraction": 0.0}, ["update_fraction"]),
        ({"power_a": 0.0}, ["power_a"]),
        ({"power_a": float("nan")}, ["power_a"]),
        ({"num_pairs": 0}, ["num_pairs"]),
        ({"num_pairs": 4.0}, ["num_pairs"]),
        ({"num_examples": -1}, ["num_examples"]),
        ({"seed": -1}, ["seed"]),
    ],
)
def test_impossible_arguments_raise_with_the_numbers(change, words):
    arguments = {"num_examples": 2, "seq_len": 64, "num_pairs": 4, "vocab_size": 256, "seed": 0}
    with pytest.raises(ValueError) as error:
        make_mqar(**{**arguments, **change})
    assert all(word in str(error.value) for word in words), str(error.value)


def test_unknown_option_raises():
    with pytest.raises(TypeError, match="pasess"):
        make_mqar(num_examples=1, seq_len=16, num_pairs=2, vocab_size=12, seed=0, pasess=2)


def test_equal_bytes_for_a_seed_whatever_ran_before():
    """C24: one seed twice, and once after other random draws."""
    sizes = {"num_examples": 1500, "seq_len": 64, "num_pairs": 4, "vocab_size": 256}
    first = make_mqar("update", seed=3, **sizes)
    np.random.seed(9)
    np.random.random(5)
    make_mqar("block", seed=4, **sizes)
    again = make_mqar("update", seed=3, **sizes)
    assert [array.tobytes() for array in first] == [array.tobytes() for array in again]


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025])
def test_first_rows_do_not_depend_on_how_many_are_drawn(count):
    sizes = {"seq_len": 16, "num_pairs": 2, "vocab_size": 40, "seed": 5}
    whole, part = (make_mqar(num_examples=n, **sizes) for n in (2100, count))
    for long, short in zip(whole, part, strict=True):
        np.testing.assert_array_equal(long[:count], short)


def test_rows_and_splits_do_not_overlap():
    sizes = {"num_examples": 2000, "seq_len": 64, "num_pairs": 4, "vocab_size": 256}
    seeds = [split_seed(seed, split) for seed in (0, 1) for split in mqar.SPLITS]
    assert len(set(seeds)) == 6
    rows = np.concatenate([make_mqar(seed=seed, **sizes).inputs for seed in seeds])
    assert len(np.unique(rows, axis=0)) == len(rows)
    with pytest.raises(ValueError, match="split.*'dev'"):
        split_seed(0, "dev")


def test_one_vocabulary_uniformly_used():
    """Keys, values and filler each cover all tokens, with equal frequency."""
    vocab_size, count = 20, 20_000
    rows = make_mqar(num_examples=count, seq_len=32, num_pairs=4, vocab_size=vocab_size, seed=0)
    for tokens in (rows.inputs[:, 0], rows.inputs[:, 7], rows.inputs[:, -1]):
        frequency = np.bincount(tokens, minlength=vocab_size)
        spread = np.sqrt(count / vocab_size)
        assert np.abs(frequency - count / vocab_size).max() < 5 * spread


@pytest.mark.parametrize("power_a", [0.01, 0.5, 1.0])
def test_query_gaps_follow_the_power_law(power_a):
    """With one pair the slot of its query has exactly the stated probabilities."""
    count, slots = 20_000, 7
    batch = make_mqar(
        num_examples=count, seq_len=16, num_pairs=1, vocab_size=30, seed=1, power_a=power_a
    )
    frequency = np.bincount((batch.query_positions[:, 0] - 2) // 2, minlength=slots)
    weights = np.arange(1, slots + 1) ** (power_a - 1)
    wanted = count * weights / weights.sum()
    assert np.abs((frequency - wanted) / np.sqrt(wanted)).max() < 5


def test_updated_keys_are_any_of_the_keys():
    """Each key is written again equally often: its place among the first writes tells nothing."""
    count = 8_000
    rows = make_mqar(
        "update", num_examples=count, seq_len=64, num_pairs=4, vocab_size=64, seed=2
    ).inputs
    again = (rows[:, 0:8:2, None] == rows[:, None, 8:12:2]).any(axis=2).sum(axis=0)
    assert np.abs(again - count / 2).max() < 5 * np.sqrt(count / 4)


def test_values_may_be_keys_on_request():
    sizes = {"num_examples": 500, "seq_len": 32, "num_pairs": 4, "vocab_size": 8, "seed": 0}
    rows = make_mqar(values_may_be_keys=True, **sizes).inputs
    assert (rows[:, 0:8:2, None] == rows[:, None, 1:8:2]).any()


def test_hundred_thousand_rows_in_two_seconds():
    """Processor time, so that other work on the machine does not matter."""
    start = time.process_time()
    make_mqar(num_examples=100_000, seq_len=64, num_pairs=4, vocab_size=8192, seed=0)
    assert time.process_time() - start < 2


def test_worked_example_of_the_docstring():
    result = doctest.testmod(mqar)
    assert result.attempted >= 3 and result.failed == 0


def test_imports_numpy_only():
    code = (
        "import sys, bayesmem.data.mqar; print([m for m in ('jax', 'grain') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
