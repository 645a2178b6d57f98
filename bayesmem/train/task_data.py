"""The data of a sweep's training and of its tests, checked before anything is drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from bayesmem.data.addressed import AddressBatch
from bayesmem.data.collision import CollisionTask, sample_collision
from bayesmem.data.examples import vocab_size
from bayesmem.data.mqar import MqarTask
from bayesmem.data.random_keys import RandomKeysTask, sample_random_keys

MAIN_TEST = "test"
"""Name of the test that has the task's own distribution."""


class Sampler(NamedTuple):
    """A task whose batches are drawn on the device."""

    kind: type
    sample: Callable[[Any, jax.Array, int], AddressBatch]


SAMPLED = {
    "collision": Sampler(CollisionTask, sample_collision),
    "random_keys": Sampler(RandomKeysTask, sample_random_keys),
}
"""Address tasks by their name in a config."""


def sampled_task(data: Mapping[str, Any]) -> Any:
    """Returns the address task of a config's `data` block.

    Raises:
      ValueError: missing or unknown keys, or values that do not fit.
    """
    kind = SAMPLED[data["task"]].kind
    fields = {field.name for field in dataclasses.fields(kind)}
    wanted = {"task", "seed", "test_examples", *fields}
    unknown, missing = sorted(set(data) - wanted), sorted(wanted - set(data))
    if unknown or missing:
        raise ValueError(
            f"found unknown keys {unknown}, missing keys {missing}; wanted exactly "
            f"{sorted(wanted)} for task {data['task']!r}"
        )
    for name in ("seed", "test_examples"):
        if isinstance(data[name], bool) or not isinstance(data[name], int) or data[name] < 0:
            raise ValueError(f"{name}: found {data[name]!r}; wanted an int >= 0")
    if data["test_examples"] < 1:
        raise ValueError("test_examples: found 0; wanted at least 1")
    return kind(**{name: _tuples(data[name]) for name in fields})


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def all_data(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The `data` blocks of training and of every test, by the test's name.

    Args:
      config: the whole config of a sweep.

    Raises:
      ValueError: a block that no task can be made from.
    """
    train = {key: config["data"][key] for key in config["data"]}
    if train.get("task") == "mqar":
        train |= {"valid_examples": 0}  # a sweep has none
    tests = {name: dict(config["tests"][name].items()) for name in config["tests"]}
    if MAIN_TEST in tests:
        raise ValueError(f"config tests: found {MAIN_TEST!r}; wanted another name, for it is there")
    found = {MAIN_TEST: train} | {name: train | own for name, own in tests.items()}
    for name, data in found.items():
        try:
            _check_data(data)
        except ValueError as error:
            place = "config data" if name == MAIN_TEST else f"config tests[{name!r}]"
            raise ValueError(f"{place}: {error}") from error
        if seen_by_model(data) != seen_by_model(train):
            raise ValueError(
                f"config tests[{name!r}]: found task, classes and key size {seen_by_model(data)}; "
                f"wanted {seen_by_model(train)}, which the model is trained on"
            )
    return found


def _check_data(data: Mapping[str, Any]) -> None:
    """Raises ValueError unless a task can be made from a block; draws nothing."""
    if data.get("task") in SAMPLED:
        sampled_task(data)
        return
    if data.get("task") != "mqar":
        wanted = ", ".join(("mqar", *SAMPLED))
        raise ValueError(f"task: found {data.get('task')!r}; wanted one of {wanted}")
    vocab_size(data)  # which looks for unknown keys
    MqarTask(**{field.name: data[field.name] for field in dataclasses.fields(MqarTask)})
    for name in ("train_examples", "test_examples"):
        if data[name] < 1:
            raise ValueError(f"{name}: found {data[name]}; wanted at least 1")


def seen_by_model(data: Mapping[str, Any]) -> tuple[str, int, int | None]:
    """What a model is made for: the task, its classes, and the size of addresses."""
    dims = sampled_task(data).dims if data["task"] in SAMPLED else None
    return data["task"], classes(data), dims


def classes(data: Mapping[str, Any]) -> int:
    """How many token ids or labels a block has."""
    return sampled_task(data).labels if data["task"] in SAMPLED else vocab_size(data)
