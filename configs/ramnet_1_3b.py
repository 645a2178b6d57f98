"""RAM-Net at 1.3B parameters: 25 layers, 64 heads of 32, 1,024 slots (arXiv 2602.11958v2).

python -m launch.describe --config=configs/ramnet_1_3b.py:top16

Variants: "top8" (default), "top16" and "top32" slots written and read by a token. Total state
L H d_v S = 52.4M numbers, active 2 K L H d_v = 0.8M, 1.6M and 3.3M.
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
        variant, width=2_048, mlp_width=5_120, tokens=100e9, warmup=1e9, learning_rate=4e-4
    )
