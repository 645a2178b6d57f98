"""The config of a sweep, checked as a whole before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayesmem.train.grid import SweepSettings
from bayesmem.train.settings import Settings
from bayesmem.train.tasks import check_model

SECTIONS = ("model", "data", "optimizer", "train", "sweep", "tests")

_OF_ONE_RUN = {
    "model": ("width", "mixers", "max_length"),
    "data": ("valid_examples",),
    "optimizer": ("learning_rate",),
    "train": (
        "grad_accumulation",
        "loss_tokens",
        "z_loss",
        "eval_every",
        "eval_batches",
        "wandb_project",
    ),
}
"""Keys that a config of one run has and that nothing reads in a sweep."""


def checked(config: Mapping[str, Any]) -> tuple[Settings, SweepSettings]:
    """Parses a sweep's config.

    Args:
      config: exactly the sections of `SECTIONS`.

    Returns:
      What its runs have in common, with a peak learning rate of 1 and one device; and the grid.

    Raises:
      ValueError: a section or key is missing, unknown, of one run only or out of range, or there
        is no model of a mixer and width.
    """
    unknown, missing = sorted(set(config) - set(SECTIONS)), sorted(set(SECTIONS) - set(config))
    if unknown or missing:
        raise ValueError(
            f"config: found unknown keys {unknown}, missing keys {missing}; "
            f"wanted exactly {', '.join(SECTIONS)}"
        )
    for section, names in _OF_ONE_RUN.items():
        for name in names:
            if name in config[section]:
                raise ValueError(
                    f"config {section}.{name}: found {config[section][name]!r}; wanted no such "
                    "key in a sweep: its runs have their own (`sweep`, `tests`), or none"
                )
    grid = SweepSettings.from_config(config["sweep"])
    optimizer = {key: config["optimizer"][key] for key in config["optimizer"]}
    settings = Settings.from_config(
        {
            "seed": 0,
            "model": config["model"],
            "data": config["data"],
            "optimizer": optimizer | {"learning_rate": 1.0},
            "train": config["train"],
            "mesh": {},
        }
    )
    rows, size = config["data"].get("train_examples"), settings.train.batch_size
    if isinstance(rows, int) and size > rows:
        raise ValueError(
            f"config train.batch_size: found {size}; wanted at most the {rows} examples of the "
            "train split"
        )
    for mixer in grid.mixers:
        for width in grid.widths:
            check_model(config, mixer, width)
    return settings, grid
