"""Ablation of RAM-Net: how a written slot forgets, the gated slot update or PDMA.

python -m launch.train --config=configs/ablations/retention.py:pdma --workdir=/tmp/retention_pdma

Variants, joined by commas: "gsu" (default, the recipe's own; lambda = sigmoid(logit(1 - w) -
gamma)) or "pdma" of the first version of the paper (lambda = (1 - w)^gamma); and a setting, "340m"
(default), "lm" or "mqar", see `configs/ablations/setting.py`.

We know of no published numbers that compare the two.
"""

from configs.ablations import setting

VERSIONS = {"gsu": {"retention": "gsu"}, "pdma": {"retention": "pdma"}}
get_config = setting.versions(VERSIONS)
