"""Recall (MQAR) by every mixer, over widths, learning rates and seeds.

python -m launch.sweep --config=configs/sweeps/mqar.py:update,128x8 --workdir=runs/mqar_update_128

Variants, joined by commas: a form of the task, "base" (default), "update" or "block"; and length x
pairs, "64x4" (default), "128x8", "256x16" or "512x64". One vocabulary of 8,192, two layers of
mixers alone, 100,000 rows, 64 epochs and four learning rates from 1e-4 to 1e-2 are Zoology's
protocol (arXiv 2312.04927) with the paper's harder vocabulary (arXiv 2605.31163, Figure 4); widths
are 64 to 256 of its 64 to 512. Shorter: `--config.train.steps=2500
--config.sweep.seeds='(0,)'`. Every run is also tested on rows two and four times as long, and on
twice as long ones with twice the pairs.
"""

import ml_collections

from configs import common
from configs.mqar import TASKS

SIZES = ("64x4", "128x8", "256x16", "512x64")

# Without a convolution no value sees its key: see `configs/mqar.py`.
_PLAIN = {
    "transition": "scalar",
    "qk_bias": 1.0,
    "initial_process_var": 1.0,
    "output_gate": "none",
}

OPTIONS = {
    "bayesian": _PLAIN,
    "bayesian/rotation": _PLAIN | {"rotation": True},  # what is read depends on the age of a write
    "bayesian/conv": {"transition": "scalar", "conv_size": 4, "activation": "silu"},
    "deltanet": {},
    "gated_deltanet": {},
    "gated_deltanet/plain": {"conv_size": 0},
    "kda": {},
    "gla": {},
    "mamba2": {},
    "linear_attention": {},
    "attention": {},
    "ramnet": {"num_heads": 4, "conv_size": 4},
}
"""Mixers, and what each has besides two heads and its published short convolution, if any."""


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The config of a variant, locked.

    Args:
        variant: Comma parts as in the module docstring.

    Returns:
        ConfigDict.

    Raises:
        ValueError: A part that does not exist; lists what does.
    """
    chosen = common.choose(variant, {"task": TASKS, "size": SIZES})
    length, pairs = map(int, chosen["size"].split("x"))
    data = common.mqar_data()
    data.variant = chosen["task"]
    data.seq_len, data.num_pairs, data.vocab_size = length, pairs, 8192
    config = common.base(data, data.get_oneway_ref("vocab_size"))
    config.model.width = 64
    config.model.mlp_width = 0  # mixers alone
    for name, own in OPTIONS.items():
        config.model.mixer_options[name] = {"num_heads": 2} | own
    config.train.batch_size = 256
    config.train.steps = 64 * data.train_examples // config.train.batch_size
    config.optimizer.warmup_steps = 0
    config.train.log_every = 100
    config.train.checkpoint_every = 1_000
    config.train.keep_checkpoints = 1
    common.sweep(config, tuple(OPTIONS))
    config.sweep.widths = (64, 128, 256)
    config.sweep.together = 12 if length < 512 else 3  # what fits on one large GPU
    config.sweep.learning_rates = (1e-4, 4.6e-4, 2.2e-3, 1e-2)  # logspace(-4, -2, 4)
    config.tests["length_x2"] = {"seq_len": 2 * length}
    config.tests["length_x4"] = {"seq_len": 4 * length}
    config.tests["length_and_pairs_x2"] = {"seq_len": 2 * length, "num_pairs": 2 * pairs}
    return config.lock()
