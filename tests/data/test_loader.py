"""Loaders: order, exact resume, hosts, finite passes and their errors."""

import json
import zlib

import numpy as np
import pytest

from bayesmem.data.examples import load_examples, vocab_size
from bayesmem.data.loader import make_eval_batches, make_loader
from bayesmem.data.preparation import Source, prepare

MQAR = {
    "task": "mqar",
    "variant": "base",
    "seq_len": 16,
    "num_pairs": 2,
    "vocab_size": 40,
    "power_a": 0.01,
    "passes": 1,
    "update_fraction": 0.5,
    "block_size": None,
    "values_may_be_keys": False,
    "train_examples": 10,
    "valid_examples": 7,
    "test_examples": 3,
    "seed": 0,
}


@pytest.fixture(params=["mqar", "text", "prepared"])
def data(request, tmp_path):
    if request.param == "mqar":
        return MQAR
    rng = np.random.default_rng(0)
    for split, size in (("train", 75), ("valid", 51), ("test", 20)):
        (tmp_path / f"{split}.txt").write_bytes(rng.integers(32, 127, size, np.uint8).tobytes())
    path = tmp_path
    if request.param == "prepared":
        path = tmp_path / "prepared"
        prepare(Source(str(tmp_path), shard_bytes=1), path)
    # No tokenizer: what configs of earlier versions have means bytes.
    return {"task": "text", "path": str(path), "text_key": "text", "seq_len": 8}


def take(loader, count):
    return [next(loader) for _ in range(count)]


def assert_same(batches, others):
    assert len(batches) == len(others)
    for batch, other in zip(batches, others, strict=True):
        assert batch.keys() == other.keys()
        for name in batch:
            np.testing.assert_array_equal(batch[name], other[name])


def rows(batches):
    """Rows as tuples of inputs and targets, blank ones left out."""
    joined = [
        (tuple(inputs), tuple(targets))
        for batch in batches
        for inputs, targets in zip(batch["inputs"].tolist(), batch["targets"].tolist(), strict=True)
    ]
    return [row for row in joined if set(row[1]) != {-100}]


def test_batches_of_an_epoch_are_the_split_in_another_order(data):
    """10 examples in batches of 4: the third batch spans two epochs."""
    loader = make_loader(data, batch_size=4, seed=0)
    seen = rows(take(loader, 10))
    stored = rows([load_examples(data, "train").take(np.arange(10))])
    epochs = [seen[start : start + 10] for start in range(0, 40, 10)]
    assert all(sorted(epoch) == sorted(stored) for epoch in epochs)
    assert len({tuple(epoch) for epoch in [*epochs, stored]}) == 5


def test_one_seed_one_order(data):
    first, again, other = (
        take(make_loader(data, batch_size=5, seed=seed), 4) for seed in (3, 3, 4)
    )
    assert_same(first, again)
    assert rows(first) != rows(other)


def test_batches_of_one_row_are_those_of_two_one_by_one(data):
    pairs = take(make_loader(data, batch_size=2, seed=3), 8)
    ones = take(make_loader(data, batch_size=1, seed=3), 16)
    assert rows(ones) == rows(pairs)


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 7])
def test_resume_at_any_step_bit_for_bit(data, steps):
    whole = make_loader(data, batch_size=4, seed=0)
    take(whole, steps)
    stored = json.loads(json.dumps(whole.get_state()))
    wanted = take(whole, 6)
    resumed = make_loader(data, batch_size=4, seed=0)
    take(resumed, 2)
    for _ in range(2):
        resumed.set_state(stored)
        assert_same(take(resumed, 6), wanted)
    assert resumed.get_state() == whole.get_state()


def test_a_batch_may_be_changed_without_changing_the_next_epoch(data):
    loader = make_loader(data, batch_size=10, seed=0)
    batch = next(loader)
    wanted = sorted(rows([batch]))
    for array in batch.values():
        array[:] = 5
    assert sorted(rows([next(loader)])) == wanted


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, ["seed", "0", "1"]),
        ({"batch_size": 2}, ["batch_size", "4", "2"]),
        ({"split": "valid"}, ["split", "'train'", "'valid'"]),
    ],
)
def test_a_state_of_another_run_is_refused(data, change, words):
    arguments = {"batch_size": 4, "seed": 0}
    stored = make_loader(data, **arguments).get_state()
    other = make_loader(data, **{**arguments, **change})
    with pytest.raises(ValueError) as error:
        other.set_state(stored)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_state_of_other_content_is_refused():
    stored = make_loader(MQAR, batch_size=4, seed=0).get_state()
    with pytest.raises(ValueError, match="checksum"):
        make_loader({**MQAR, "seed": 1}, batch_size=4, seed=0).set_state(stored)
    with pytest.raises(ValueError, match="examples 10, wanted 11"):
        make_loader({**MQAR, "train_examples": 11}, batch_size=4, seed=0).set_state(stored)
    with pytest.raises(ValueError, match=r"state: found the keys \['position'\]"):
        make_loader(MQAR, batch_size=4, seed=0).set_state({"position": stored["position"]})


def test_hosts_share_the_batches_of_one_host(data):
    alone = take(make_loader(data, batch_size=4, seed=0), 5)
    hosts = [
        take(make_loader(data, batch_size=4, seed=0, process_index=i, process_count=2), 5)
        for i in range(2)
    ]
    joined = [
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for parts in zip(*hosts, strict=True)
    ]
    assert_same(joined, alone)
    evaluation = [
        make_eval_batches(data, batch_size=4, process_index=i, process_count=2) for i in range(2)
    ]
    assert len(evaluation[0]) == len(evaluation[1]) == 2
    parts = rows([batch for batches in evaluation for batch in batches])
    assert sorted(parts) == sorted(rows(make_eval_batches(data, batch_size=4)))


def test_one_epoch_without_repeat_loses_nothing(data):
    batches = list(make_loader(data, batch_size=4, seed=0, repeat=False))
    assert [len(batch["inputs"]) for batch in batches] == [4, 4, 4]
    assert sorted(rows(batches)) == sorted(rows([load_examples(data, "train").take(np.arange(10))]))


def test_evaluation_is_the_split_in_order_padded_to_equal_shapes(data):
    batches = make_eval_batches(data, batch_size=4)
    assert len(batches) == len(list(batches)) == 2
    assert rows(batches) == rows([load_examples(data, "valid").take(np.arange(7))])
    assert_same(list(batches), list(batches))
    first, last = batches
    assert {n: a.shape for n, a in first.items()} == {n: a.shape for n, a in last.items()}
    assert all(array.dtype == np.int32 for array in last.values())
    assert (last["targets"][3] == -100).all() and (last["targets"][2] != -100).any()
    if "segment_ids" in last:
        assert (last["segment_ids"][3] == -1).all()
    assert_same(list(make_eval_batches(data, batch_size=4, max_batches=1)), [first])
    assert len(make_eval_batches(data, batch_size=100, max_batches=5)) == 1


def test_splits_are_the_rows_of_their_own_seed():
    examples = {split: load_examples(MQAR, split) for split in ("train", "valid", "test")}
    assert [len(split) for split in examples.values()] == [10, 7, 3]
    inputs = np.concatenate(
        [split.take(np.arange(len(split)))["inputs"] for split in examples.values()]
    )
    assert len(np.unique(inputs, axis=0)) == 20


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch_size": 11}, ["batch_size", "11", "10", "'train'"]),
        ({"batch_size": 0}, ["batch_size", "0"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"seed": 0.5}, ["seed", "0.5"]),
        ({"split": "dev"}, ["split", "'dev'", "'valid'"]),
        ({"process_count": 3}, ["batch_size", "4", "3"]),
        ({"process_index": 1}, ["process_index", "1"]),
    ],
)
def test_bad_arguments_are_named(data, arguments, words):
    with pytest.raises(ValueError) as error:
        make_loader(data, **{"batch_size": 4, "seed": 0, **arguments})
    assert all(word in str(error.value) for word in words), str(error.value)


def test_bad_data_blocks_are_named():
    with pytest.raises(ValueError, match="data.task: found 'images'"):
        load_examples({"task": "images"}, "train")
    with pytest.raises(ValueError, match=r"unknown keys \['sede'\], missing keys \['seed'\]"):
        renamed = {"sede" if key == "seed" else key: value for key, value in MQAR.items()}
        load_examples(renamed, "train")
    with pytest.raises(ValueError, match="data.test_examples: found 0"):
        load_examples({**MQAR, "test_examples": 0}, "test")
    with pytest.raises(ValueError, match="max_batches: found 0"):
        make_eval_batches(MQAR, batch_size=1, max_batches=0)
    text = {"task": "text", "path": "", "text_key": "text", "seq_len": 0}
    with pytest.raises(ValueError, match="data.seq_len: found 0"):
        load_examples(text, "train")


def test_vocabulary_of_a_task(data):
    assert vocab_size(data) == {"mqar": 40, "text": 257}[data["task"]]


def test_tokens_and_checksum_of_bytes_are_those_of_earlier_versions(tmp_path):
    """A stored place in a corpus of bytes stays good."""
    (tmp_path / "train.txt").write_bytes(b"abc\n\f\n\xff")
    data = {"task": "text", "path": str(tmp_path), "text_key": "text", "seq_len": 8}
    wanted = np.array([256, 97, 98, 99, 10, 256, 255, 256], np.uint16)
    assert load_examples(data, "train").checksum() == zlib.crc32(wanted.data, 8)
    assert load_examples({**data, "tokenizer": "bytes"}, "train").checksum() == zlib.crc32(
        wanted.data, 8
    )
