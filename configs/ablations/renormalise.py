"""Ablation of RAM-Net: the K weights of an address are scaled to the sum 1.

python -m launch.train --config=configs/ablations/renormalise.py --workdir=/tmp/renormalise

Variants: a setting, "340m" (default), "lm" or "mqar", see `configs/ablations/setting.py`.

Published at 340M: perplexity 26.83 (26.89 as they are), S-NIAH-2 / -3 at 4K 63.7 / 12.0
(83.7 / 18.3). We have not reproduced these numbers.
"""

from configs.ablations import setting

get_config = setting.ablation(renormalise=True)
