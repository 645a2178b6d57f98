"""Ablation of RAM-Net: a token writes and reads 8, 16 or 32 slots.

python -m launch.train --config=configs/ablations/top_k.py:k16 --workdir=/tmp/top_k_k16

Variants, joined by commas: "k8" (default, the recipe's own), "k16" or "k32"; and a setting,
"340m" (default), "lm" or "mqar", see `configs/ablations/setting.py`.

Published at 340M, for 8 / 16 / 32: perplexity 26.89 / 26.23 / 25.87 on WikiText-103; mean S-NIAH
64.7 / 65.1 / 72.9; mean recall 23.2 / 27.9 / 32.0. We have not reproduced these numbers.
"""

import ml_collections

from configs import common
from configs.ablations import setting

VERSIONS = {"k8": 8, "k16": 16, "k32": 32}  # slots


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The config of a variant, locked.

    Args:
        variant: Comma parts as in the module docstring.

    Returns:
        ConfigDict.

    Raises:
        ValueError: A part that does not exist; lists what does.
    """
    chosen = common.choose(variant, {"version": tuple(VERSIONS), "setting": setting.SETTINGS})
    return setting.ablate(chosen["setting"], top_k=VERSIONS[chosen["version"]])
