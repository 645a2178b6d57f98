"""Ablation of RAM-Net: no head's addresses move with the position (NoPE only).

python -m launch.train --config=configs/ablations/nope_only.py --workdir=/tmp/nope_only

Variants: a setting, "340m" (default), "lm" or "mqar", see `configs/ablations/setting.py`.

Published at 340M: perplexity 28.04 (26.89 with CAPE heads), S-NIAH-2 / -3 at 4K 43.0 / 8.7
(83.7 / 18.3). We have not reproduced these numbers.
"""

from configs.ablations import setting

get_config = setting.ablation(cape_share=0.0)
