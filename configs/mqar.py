"""Multi-query associative recall: 64 tokens, 4 pairs, one vocabulary of 256, width 64.

python -m launch.train --config=configs/mqar.py:bayesian --workdir=/tmp/mqar

Variants, joined by commas: a mixer, "bayesian" (default; without convolution) or another of
`configs/common.py` (with the short convolution it is published with, if any), or a hybrid such as
"bayesian+attention"; and a form of the task, "base" (default), "update" or "block":

python -m launch.train --config=configs/mqar.py:gated_deltanet,update --workdir=/tmp/mqar_update

Larger sizes: `--config.data.seq_len=512 --config.data.num_pairs=64 --config.data.vocab_size=8192
--config.model.width=512`.
"""

import ml_collections

from configs import common

TASKS = ("base", "update", "block")


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The config of a variant, locked.

    Args:
        variant: Comma parts as in the module docstring.

    Returns:
        ConfigDict.

    Raises:
        ValueError: A part that does not exist; lists what does.
    """
    chosen = common.choose(variant, {"mixer": common.MIXERS, "task": TASKS})
    data = common.mqar_data()
    data.variant = chosen["task"]
    config = common.base(data, data.get_oneway_ref("vocab_size"))
    config.model.width = 64
    config.model.mlp_width = 0  # mixers alone, as in Zoology
    common.use_mixers(config, chosen["mixer"], num_heads=2)
    config.optimizer.learning_rate = 3e-3
    config.optimizer.warmup_steps = 100
    config.train.steps = 2_000
    if "bayesian" in config.model.mixers:
        # No convolution shows a value its key, one token back. The layer learns to read it by a
        # direction common to all keys (`qk_bias`), along which a large process variance keeps
        # what came last; without that bias it was still at chance after 1,000 steps. A gate
        # between memory and output, or an MLP, only delays it.
        config.model.mixer_options["bayesian"].update(
            {
                "transition": "scalar",
                "qk_bias": 1.0,
                "initial_process_var": 1.0,
                "output_gate": "none",
                "chunk_size": 16,  # fastest on a CPU
            }
        )
        config.optimizer.learning_rate = 8e-3
    if "ramnet" in config.model.mixers:
        # A short convolution, as Zoology has before every mixer. Without one a run mostly stays at
        # chance among the row's values; 64 slots (`digits` 3) and sharper addresses
        # (`initial_temperature` 0.7, `initial_address` 0.3) help some seeds within 5,000 steps.
        config.model.mixer_options["ramnet"].update({"num_heads": 4, "conv_size": 4})
        config.optimizer.learning_rate = 2e-2
        config.train.steps = 600
    config.train.batch_size = 64
    config.train.log_every = 50
    config.train.eval_every = 500
    config.train.eval_batches = 16  # all of the valid split
    config.train.checkpoint_every = 500
    return config.lock()
