"""Ablation of RAM-Net: no head's addresses move with the position (NoPE only).

python -m launch.train --config=configs/ablations/nope_only.py --workdir=/tmp/nope_only

Variants: a setting, "340m" (default), "lm" or "mqar", see `configs/ablations/setting.py`.

Published at 340M: perplexity 28.04 (26.89 with CAPE heads), S-NIAH-2 / -3 at 4K 43.0 / 8.7
(83.7 / 18.3). We have not reproduced these numbers.
"""

import ml_collections

from configs import common
from configs.ablations import setting


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The config of a variant, locked.

    Args:
        variant: Comma parts as in the module docstring.

    Returns:
        ConfigDict.

    Raises:
        ValueError: A part that does not exist; lists what does.
    """
    chosen = common.choose(variant, {"setting": setting.SETTINGS})
    return setting.ablate(chosen["setting"], cape_share=0.0)
