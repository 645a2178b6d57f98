"""Random-key crowding: more keys than a memory has dimensions.

python -m launch.sweep --config=configs/sweeps/random_keys.py --workdir=runs/random_keys

The five mixers of `configs/sweeps/collision.py` at addresses that are given (arXiv 2605.31163,
Figure 7): n unit keys in R^64, seen through one projection to 16 dimensions, then 8 queries.
Trained on up to 64 keys; tests have 96 to 256, 6 to 16 a dimension.
"""

import ml_collections

from configs import common
from configs.sweeps.collision import matched


def get_config() -> ml_collections.ConfigDict:
    """The config, locked."""
    data = ml_collections.ConfigDict()
    data.task = "random_keys"
    data.writes = (16, 32, 48, 64)  # n, keys of a sequence: one of them for each sequence
    data.queries = 8  # different keys that were written
    data.key_dim = 64  # of the keys
    data.dims = 16  # of the addresses, after the projection
    data.labels = 64  # values, one hot
    data.projection_seed = 0  # of the projection that all sequences share
    data.seed = 0  # of all sequences
    data.test_examples = 2_560  # sequences of each test
    config = matched(common.base(data, data.get_oneway_ref("labels")))
    for writes in (96, 128, 192, 256):
        config.tests[f"keys_{writes}"] = {"writes": (writes,)}
    return config.lock()
