"""Ablation of RAM-Net: what a head reads is not normalised before the output gate.

python -m launch.train --config=configs/ablations/output_norm.py --workdir=/tmp/output_norm

Variants: a setting, "340m" (default), "lm" or "mqar", see `configs/ablations/setting.py`.

Published at 340M: perplexity 28.87 (26.89 with the norm), S-NIAH-2 / -3 at 4K 16.3 / 12.3
(83.7 / 18.3). We have not reproduced these numbers.
"""

from configs.ablations import setting

get_config = setting.ablation(output_norm=False)
