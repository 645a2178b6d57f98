"""Language modelling on bytes; by default on the running Python's own library sources.

python -m launch.train --config=configs/lm.py --workdir=/tmp/lm

Variants, joined by commas: a size, "tiny" (default: minutes on two CPU cores) or "small"; and a
mixer, "bayesian" (default) or another of `configs/common.py`, or a hybrid such as
"bayesian+attention", whose layers take the mixers in turn:

python -m launch.train --config=configs/lm.py:small,gated_deltanet --workdir=/tmp/lm_small

Other text: `--config.data.path=FILE_OR_FOLDER`.
"""

import ml_collections

from configs import common

SIZES = ("tiny", "small")
BYTE_TOKENS = 257  # the bytes, and one id between documents


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The config of a variant, locked.

    Args:
        variant: Comma parts as in the module docstring.

    Returns:
        ConfigDict.

    Raises:
        ValueError: A part that does not exist; lists what does.
    """
    chosen = common.choose(variant, {"size": SIZES, "mixer": common.MIXERS})
    config = common.base(common.text_data(), BYTE_TOKENS)
    common.use_mixers(config, chosen["mixer"], num_heads=4)
    if "bayesian" in config.model.mixers:
        # Without a convolution, a direction common to all keys and a large process variance let a
        # layer read what came last: without them the memory is hardly used in a run this short.
        config.model.mixer_options["bayesian"].update(
            {
                "transition": "scalar",
                "qk_bias": 1.0,
                "initial_process_var": 1.0,
                "chunk_size": 16,  # fastest on a CPU
            }
        )
    if chosen["size"] == "small":
        config.data.seq_len = 512
        config.model.width = 256
        config.model.num_layers = 6
        config.model.mlp_width = 704
        config.optimizer.learning_rate = 1e-3
        config.optimizer.warmup_steps = 200
        config.train.steps = 5_000
        config.train.eval_every = 500
        config.train.checkpoint_every = 500
    return config.lock()
