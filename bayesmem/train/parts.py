"""From a config to what is trained: the model and its batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import flax.linen as nn
import jax
import numpy as np

from bayesmem.data.examples import vocab_size
from bayesmem.data.loader import make_eval_batches, make_loader
from bayesmem.models import LanguageModel, ModelConfig
from bayesmem.train.settings import Settings

NumpyBatch = Mapping[str, np.ndarray]


class Loader(Protocol):
    """An endless iterator over this process's part of each batch, with its place in a state."""

    def __next__(self) -> NumpyBatch:
        """Returns the next batch."""

    def get_state(self) -> Any:
        """Returns the place after the last batch, as JSON values or bytes."""

    def set_state(self, state: Any) -> None:
        """Goes to a place."""


class Parts(NamedTuple):
    """What is trained and on what."""

    model: nn.Module
    loader: Loader
    eval_batches: Iterable[NumpyBatch]  # iterated from its start at every evaluation


def build_model(config: Mapping[str, Any]) -> LanguageModel:
    """Builds the language model of a config.

    Args:
      config: the whole config.

    Returns:
      The unbound module.

    Raises:
      ValueError: a bad `model` section, or a vocabulary smaller than the task's.
    """
    model_config = ModelConfig.from_dict(config["model"])
    needed = vocab_size(config["data"])
    if model_config.vocab_size < needed:
        raise ValueError(
            f"config model.vocab_size: found {model_config.vocab_size}; wanted at least {needed}, "
            f"the token ids of data.task = {config['data']['task']}"
        )
    return LanguageModel(model_config)


def build_parts(config: Mapping[str, Any], settings: Settings) -> Parts:
    """Builds the model, the training loader and the validation batches of a config.

    Args:
      config: the whole config.
      settings: the same, parsed.

    Returns:
      The parts.

    Raises:
      ValueError: a bad `model` or `data` section.
    """
    share: dict[str, Any] = {
        "batch_size": settings.train.batch_size,
        "process_index": jax.process_index(),
        "process_count": jax.process_count(),
    }
    model = build_model(config)
    loader = make_loader(config["data"], seed=settings.seed, split="train", **share)
    evaluation = make_eval_batches(
        config["data"], split="valid", max_batches=settings.train.eval_batches, **share
    )
    return Parts(model, loader, evaluation)
