"""Ablation of RAM-Net: addresses of one to five digits, always for 1,024 slots a head.

python -m launch.train --config=configs/ablations/digits.py:u3 --workdir=/tmp/digits_u3

Variants, joined by commas: "u5" (default, the recipe's own), "u4", "u3", "u2" or "u1"; and a
setting, "340m" (default), "lm" or "mqar", see `configs/ablations/setting.py`. Every variant sets
1,024 slots, whatever the setting has.

Fewer digits take more scores, one for each value of each digit: 20, 24, 32, 64 and 1,024 an
address, and as many columns of its projection; at 340M "u1" has 2.0B parameters. We know of no
published numbers for it.
"""

from configs.ablations import setting

VERSIONS = {  # values of each digit, or of all
    "u5": {"digits": 5, "base": 4},
    "u4": {"digits": 4, "base": (4, 4, 8, 8)},
    "u3": {"digits": 3, "base": (8, 8, 16)},
    "u2": {"digits": 2, "base": 32},
    "u1": {"digits": 1, "base": 1_024},
}
get_config = setting.versions(VERSIONS)
