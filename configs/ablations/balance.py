"""Ablation of RAM-Net: a loss that spreads addresses evenly over the slots.

python -m launch.train --config=configs/ablations/balance.py --workdir=/tmp/balance

Variants: a setting, "340m" (default), "lm" or "mqar", see `configs/ablations/setting.py`.

Published at 340M: perplexity 27.10 (26.89 without that loss), S-NIAH-2 / -3 at 4K 11.3 / 5.7
(83.7 / 18.3). We have not reproduced these numbers.
"""

from configs.ablations import setting

get_config = setting.ablation(balance=0.01)  # our choice, the paper prints no weight
