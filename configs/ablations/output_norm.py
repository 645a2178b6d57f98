"""Ablation of RAM-Net: what a head reads is not normalised before the output gate.

python -m launch.train --config=configs/ablations/output_norm.py --workdir=/tmp/output_norm

Variants: a setting, "340m" (default), "lm" or "mqar", see `configs/ablations/setting.py`.

Published at 340M: perplexity 28.87 (26.89 with the norm), S-NIAH-2 / -3 at 4K 16.3 / 12.3
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
    return setting.ablate(chosen["setting"], output_norm=False)
