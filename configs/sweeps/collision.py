"""Learned collision: which of two similar keys a value belongs to, after a flood of one of them.

python -m launch.sweep --config=configs/sweeps/collision.py --workdir=runs/collision

Five mixers that differ in their write only, at addresses that are given (arXiv 2605.31163, Figure 3
c and d): 2,500 steps of 256 sequences, 3 seeds. Tests: floods of 16 to 256 writes, and overlaps
from .85 to .95, both never seen in training.
"""

import ml_collections

from configs import common

MATCHED = {
    "linear_attention": {},
    "gla": {"decay_temperature": 1.0},
    "deltanet": {},
    "deltanet/reset": {"beta": 0.5},  # covariance reset to .05 I before each write, r^2 = .05
    "bayesian": {"obs_var": 0.05, "prior_var": 3.0},
}
"""The five mixers, and what each has besides `SHARED`."""

SHARED = {"num_heads": 4, "conv_size": 0, "activation": "identity", "output_gate": "none"}


def matched(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Makes the sweep of the five mixers: two layers of width 64, the paper's optimizer.

    Args:
        config: The base, changed in place.

    Returns:
        The config, not locked yet.
    """
    config.model.width = 64
    config.model.mlp_width = 128
    config.model.tie_embeddings = False
    config.model.vocab_multiple = 1
    for name, own in MATCHED.items():
        config.model.mixer_options[name] = SHARED | own
    config.optimizer.learning_rate = 3e-4
    config.optimizer.warmup_steps = 0
    config.optimizer.weight_decay = 1e-4
    config.optimizer.beta2 = 0.999
    config.optimizer.schedule = "constant"
    config.train.steps = 2_500
    config.train.batch_size = 256
    config.train.log_every = 50
    config.train.checkpoint_every = 500
    config.train.keep_checkpoints = 1
    return common.sweep(config, tuple(MATCHED))


def get_config() -> ml_collections.ConfigDict:
    """The config, locked."""
    data = ml_collections.ConfigDict()
    data.task = "collision"
    data.pairs = 8  # K pairs of similar keys, on 2 K orthonormal directions
    data.dims = 16  # of a key
    data.labels = 16  # values, one hot
    data.boost = 4  # writes of each B between seed and flood
    data.floods = (1, 2, 4, 8)  # n_f, writes of each A: one of them for each sequence
    data.overlap = (0.6, 0.8)  # rho, range of the inner product of a pair's keys
    data.seed = 0  # of all sequences
    data.test_examples = 2_560  # sequences of each test
    config = matched(common.base(data, data.get_oneway_ref("labels")))
    for flood in (16, 32, 64, 256):
        config.tests[f"flood_{flood}"] = {"floods": (flood,)}
    config.tests["overlap_high"] = {"overlap": (0.85, 0.95)}
    config.tests["overlap_high_flood_256"] = {"overlap": (0.85, 0.95), "floods": (256,)}
    return config.lock()
