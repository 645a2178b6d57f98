"""Ablation of RAM-Net: a loss that spreads addresses evenly over the slots.

python -m launch.train --config=configs/ablations/balance.py --workdir=/tmp/balance

Variants: a setting, "340m" (default), "lm" or "mqar", see `configs/ablations/setting.py`.

Published at 340M: perplexity 27.10 (26.89 without that loss), S-NIAH-2 / -3 at 4K 11.3 / 5.7
(83.7 / 18.3). We have not reproduced these numbers.
"""

import ml_collections

from configs import common
from configs.ablations import setting

WEIGHT = 0.01  # of the loss; our choice, the paper prints none


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
    return setting.ablate(chosen["setting"], balance=WEIGHT)
