"""RAM-Net at 340M parameters: 25 layers, 32 heads of 32, 1,024 slots (arXiv 2602.11958v2).

python -m launch.describe --config=configs/ramnet_340m.py:top16

Variants: "top8" (default), "top16" and "top32" slots written and read by a token. Total state
L H d_v S = 26.2M numbers, active 2 K L H d_v = 0.4M, 0.8M and 1.6M.
"""

import ml_collections

from configs import pretrain


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The config of a variant, locked; see `configs.pretrain.recipe`.

    Args:
        variant: As in the module docstring.

    Returns:
        ConfigDict.

    Raises:
        ValueError: An unknown variant.
    """
    return pretrain.recipe(
        variant, width=1_024, mlp_width=2_560, tokens=10e9, warmup=500e6, learning_rate=1e-3
    )
