"""Ablation of RAM-Net: a token writes and reads 8, 16 or 32 slots.

python -m launch.train --config=configs/ablations/top_k.py:k16 --workdir=/tmp/top_k_k16

Variants, joined by commas: "k8" (default, the recipe's own), "k16" or "k32"; and a setting,
"340m" (default), "lm" or "mqar", see `configs/ablations/setting.py`.

Published at 340M, for 8 / 16 / 32: perplexity 26.89 / 26.23 / 25.87 on WikiText-103; mean S-NIAH
64.7 / 65.1 / 72.9; mean recall 23.2 / 27.9 / 32.0. We have not reproduced these numbers.
"""

from configs.ablations import setting

VERSIONS = {"k8": {"top_k": 8}, "k16": {"top_k": 16}, "k32": {"top_k": 32}}
get_config = setting.versions(VERSIONS)
