"""What the runs of a sweep are trained and tested on, from a config: see `together.Task`.

Rows of MQAR are drawn once and lie on the device; each run takes them in an order of its own.
Address tasks (`task_data.SAMPLED`) have no rows: every batch is drawn where it is used, from its
run's seed and step.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bayesmem.data.examples import Examples, load_examples
from bayesmem.models import AddressModel, LanguageModel, ModelConfig
from bayesmem.train.losses import IGNORED, logits_and_penalty
from bayesmem.train.task_data import MAIN_TEST, SAMPLED, all_data, classes, sampled_task
from bayesmem.train.together import Batch, PyTree, Task

_TRAIN, _TEST = 0, 1

_ORDERS = 64  # two epochs of more runs than are trained together

TEST_ROWS = 64
"""Rows of an address task that are tested at once, whatever the batch of training."""


@functools.lru_cache(maxsize=8)
def _drawn(data: str, split: str) -> Examples:
    """Rows of a `data` block, as JSON: all mixers and widths of a sweep have the same."""
    return load_examples(json.loads(data), split)


class RecallTask:
    """MQAR by a language model.

    Attributes:
      arrays: the rows of the train split.
      tests: batches of the test split of each distribution.
    """

    def __init__(
        self, model: LanguageModel, data: Mapping[str, Mapping[str, Any]], batch_size: int
    ) -> None:
        """Draws all rows.

        Args:
          model: what is trained.
          data: blocks by name, see `all_data`; training has that of `MAIN_TEST`.
          batch_size: rows a step, B; at most those of the split.
        """
        self._model, self._size = model, batch_size
        examples = _drawn(json.dumps(data[MAIN_TEST]), "train")
        self._count = len(examples)
        rows = examples.take(np.arange(self._count))
        self.arrays: PyTree = jax.tree.map(jnp.asarray, rows)
        self.tests: Mapping[str, Batch] = {name: self._test(own) for name, own in data.items()}
        self._orders: dict[tuple[int, int], np.ndarray] = {}

    def _test(self, data: Mapping[str, Any]) -> Batch:
        examples = _drawn(json.dumps(data), "test")
        indices = np.arange(-(-len(examples) // self._size) * self._size)
        rows = examples.take(np.where(indices < len(examples), indices, -1))
        return {
            name: jnp.asarray(x).reshape(-1, self._size, *x.shape[1:]) for name, x in rows.items()
        }

    def _order(self, seed: int, epoch: int) -> np.ndarray:
        """All rows in the order of one epoch of a run; the last orders asked for are kept."""
        if (seed, epoch) not in self._orders:
            words = np.random.SeedSequence(seed, spawn_key=(epoch,))
            order = np.random.Generator(np.random.PCG64(words)).permutation(self._count)
            self._orders[seed, epoch] = order.astype(np.int32)
            while len(self._orders) > _ORDERS:
                del self._orders[next(iter(self._orders))]
        return self._orders[seed, epoch]

    def init(self, key: jax.Array) -> PyTree:
        """Returns the initial parameters."""
        return self._model.init(key, jnp.zeros((1, 2), jnp.int32))["params"]

    def picks(self, seeds: Sequence[int], start: int, stop: int) -> np.ndarray:
        """Returns the rows' numbers [S, R, B]; a batch may span two epochs."""
        place = np.arange(start * self._size, stop * self._size)
        epochs, within = np.divmod(place, self._count)
        found = np.empty((stop - start, len(seeds), self._size), np.int32)
        for run, seed in enumerate(seeds):
            rows = np.empty(len(place), np.int32)
            for epoch in np.unique(epochs):
                here = epochs == epoch
                rows[here] = self._order(seed, int(epoch))[within[here]]
            found[:, run] = rows.reshape(stop - start, self._size)
        return found

    def batch(self, arrays: PyTree, pick: jax.Array) -> Batch:
        """Returns the rows of numbers [B]."""
        return jax.tree.map(lambda x: x[pick], arrays)

    def test_batch(self, name: str, entry: PyTree) -> Batch:
        """Returns the entry, which is a batch."""
        del name
        return entry

    def logits(self, params: PyTree, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns logits [B, Q, V] of the queries, and the penalty of layers []."""
        return logits_and_penalty(self._model, params, batch)


class AddressTask:
    """An address task by an address model.

    Attributes:
      arrays: none.
      tests: keys of the batches of each distribution, from the seed of the data.
    """

    arrays: PyTree = ()

    def __init__(
        self, model: AddressModel, data: Mapping[str, Mapping[str, Any]], batch_size: int
    ) -> None:
        """Arguments are those of `RecallTask`."""
        own = data[MAIN_TEST]
        self._model, self._size, self._seed = model, batch_size, own["seed"]
        self._sample = SAMPLED[own["task"]].sample
        self._tasks = {name: sampled_task(block) for name, block in data.items()}
        self.tests: Mapping[str, PyTree] = {
            name: self._test(block["seed"], block["test_examples"]) for name, block in data.items()
        }

    def _test(self, seed: int, rows: int) -> PyTree:
        """Keys of blocks of rows, and how many rows of each block count."""
        count = -(-rows // TEST_ROWS)
        counted = jnp.minimum(rows - TEST_ROWS * jnp.arange(count), TEST_ROWS)
        return jax.random.split(self._key(seed, _TEST), count), counted

    def _key(self, seed: int, *words: int | jax.Array) -> jax.Array:
        key = jax.random.key(seed)
        for word in words:
            key = jax.random.fold_in(key, word)
        return key

    def init(self, key: jax.Array) -> PyTree:
        """Returns the initial parameters."""
        task = self._tasks[MAIN_TEST]
        tokens, addresses = (jnp.zeros((1, 2, size)) for size in (task.features, task.dims))
        return self._model.init(key, tokens, addresses)["params"]

    def picks(self, seeds: Sequence[int], start: int, stop: int) -> np.ndarray:
        """Returns seed and step [S, R, 2]."""
        grid = np.meshgrid(np.arange(start, stop), np.asarray(seeds), indexing="ij")
        return np.stack(grid[::-1], axis=-1).astype(np.int32)

    def batch(self, arrays: PyTree, pick: jax.Array) -> Batch:
        """Draws the batch of a seed and step."""
        del arrays
        key = self._key(self._seed, _TRAIN, pick[0], pick[1])
        return self._sample(self._tasks[MAIN_TEST], key, self._size)._asdict()

    def test_batch(self, name: str, entry: PyTree) -> Batch:
        """Draws a block of rows: thousands of long rows are never there at once."""
        key, counted = entry
        batch = self._sample(self._tasks[name], key, TEST_ROWS)
        here = jnp.arange(TEST_ROWS)[:, None] < counted
        return batch._replace(targets=jnp.where(here, batch.targets, IGNORED))._asdict()

    def logits(self, params: PyTree, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns logits [B, Q, V] of the queries, and a penalty of 0."""
        logits = self._model.apply(
            {"params": params},
            batch["tokens"],
            batch["addresses"],
            segment_ids=batch["segment_ids"],
            query_positions=batch["query_positions"],
            method="at_queries",
        )
        return logits, jnp.zeros((), jnp.float32)  # type: ignore[return-value]


def model_of(config: Mapping[str, Any], mixer: str, width: int) -> ModelConfig:
    """The model of one mixer and width of a sweep's config.

    Args:
      config: the whole config.
      mixer: a name, label included.
      width: W.

    Raises:
      ValueError: a bad `model` section, or fewer classes than the task has.
    """
    section = {key: config["model"][key] for key in config["model"]}
    options = section["mixer_options"]
    own = {mixer: options[mixer]} if mixer in options else {}
    blocks = all_data(config)
    lengths = [block["seq_len"] for block in blocks.values() if "seq_len" in block]
    section |= {"mixers": (mixer,), "mixer_options": own, "width": width}
    section |= {"repeatable": True}
    section |= {"max_length": max(lengths)} if lengths else {}
    found, data = ModelConfig.from_dict(section), blocks[MAIN_TEST]
    needed = classes(data)
    if found.vocab_size < needed:
        raise ValueError(
            f"config model.vocab_size: found {found.vocab_size}; wanted at least {needed}, what "
            f"data.task = {data['task']} has"
        )
    return found


def check_model(config: Mapping[str, Any], mixer: str, width: int) -> None:
    """Raises ValueError where there is no model of a mixer and width; makes no parameters."""
    model, data = model_of(config, mixer, width), all_data(config)
    if data[MAIN_TEST]["task"] in SAMPLED:
        try:
            task = AddressTask(AddressModel(model), data, batch_size=1)
            jax.eval_shape(task.init, jax.random.key(0))
        except ValueError as error:
            raise ValueError(
                f"config sweep: mixer {mixer!r} of width {width} at addresses of data.dims = "
                f"{data[MAIN_TEST]['dims']}, wanted heads of that size: {error}"
            ) from error
    else:
        LanguageModel(model)


def build_task(config: Mapping[str, Any], mixer: str, width: int, batch_size: int) -> Task:
    """Builds what the runs of one mixer and width are trained on.

    Args:
      config: the whole config of a sweep: `model`, `data`, and `tests`, which maps a name to the
        keys of `data` that differ there.
      mixer: a name, label included.
      width: W.
      batch_size: examples a step and run, B.

    Raises:
      ValueError: a bad section.
    """
    blocks = all_data(config)
    data = blocks[MAIN_TEST]
    model = model_of(config, mixer, width)
    if data["task"] in SAMPLED:
        return AddressTask(AddressModel(model), blocks, batch_size)
    return RecallTask(LanguageModel(model), blocks, batch_size)
