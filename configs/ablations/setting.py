"""What the ablations change: every RAM-Net mixer of a setting, and nothing else of it.

No experiment by itself. Settings: "340m", the published recipe (`configs/ramnet_340m.py:top8`);
"lm", a size that trains on one device (`configs/lm.py:small,ramnet`); and "mqar", associative
recall (`configs/mqar.py:ramnet`).
"""

from collections.abc import Callable, Mapping
from typing import Any

import ml_collections

from configs import common, lm, mqar, ramnet_340m

SETTINGS = ("340m", "lm", "mqar")  # the default first


def ablation(**options: Any) -> Callable[[str], ml_collections.ConfigDict]:
    """The `get_config` of an ablation that always sets the same options; see `ablate`."""

    def get_config(variant: str = "") -> ml_collections.ConfigDict:
        """The config of a variant, locked: a setting, "" for the first of `SETTINGS`."""
        return ablate(common.choose(variant, {"setting": SETTINGS})["setting"], **options)

    return get_config


def versions(
    options: Mapping[str, Mapping[str, Any]],
) -> Callable[[str], ml_collections.ConfigDict]:
    """The `get_config` of an ablation of which there are several; see `ablate`.

    Args:
        options: Version to its options, the default version first.
    """

    def get_config(variant: str = "") -> ml_collections.ConfigDict:
        """The config of a variant, locked: a version and a setting, each left out for its first."""
        chosen = common.choose(variant, {"version": tuple(options), "setting": SETTINGS})
        return ablate(chosen["setting"], **options[chosen["version"]])

    return get_config


def ablate(setting: str, **options: Any) -> ml_collections.ConfigDict:
    """A setting with options of its RAM-Net mixers changed, locked.

    Args:
        setting: One of `SETTINGS`.
        **options: Options of `RamNet` and their values, set in each of those mixers.

    Returns:
        ConfigDict.

    Raises:
        ValueError: An unknown setting.
    """
    if setting == "340m":
        config = ramnet_340m.get_config("top8")
    elif setting == "lm":
        config = lm.get_config("small,ramnet")
    elif setting == "mqar":
        config = mqar.get_config("ramnet")
    else:
        raise ValueError(f"setting: found {setting!r}, wanted one of {', '.join(SETTINGS)}")
    config.unlock()
    for mixer in config.model.mixers:
        if mixer.partition("/")[0] == "ramnet":
            if mixer not in config.model.mixer_options:
                config.model.mixer_options[mixer] = {}
            changed = config.model.mixer_options[mixer]
            with changed.ignore_type():  # `base` is one number or a tuple
                changed.update(options)
    return config.lock()
