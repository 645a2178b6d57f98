"""Ablation of RAM-Net: how a written slot forgets, the gated slot update or PDMA.

python -m launch.train --config=configs/ablations/retention.py:pdma --workdir=/tmp/retention_pdma

Variants, joined by commas: "gsu" (default, the recipe's own; lambda = sigmoid(logit(1 - w) -
gamma)) or "pdma" of the first version of the paper (lambda = (1 - w)^gamma); and a setting, "340m"
(default), "lm" or "mqar", see `configs/ablations/setting.py`.

We know of no published numbers that compare the two.
"""

import ml_collections

from configs import common
from configs.ablations import setting

VERSIONS = ("gsu", "pdma")


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The config of a variant, locked.

    Args:
        variant: Comma parts as in the module docstring.

    Returns:
        ConfigDict.

    Raises:
        ValueError: A part that does not exist; lists what does.
    """
    chosen = common.choose(variant, {"version": VERSIONS, "setting": setting.SETTINGS})
    return setting.ablate(chosen["setting"], retention=chosen["version"])
